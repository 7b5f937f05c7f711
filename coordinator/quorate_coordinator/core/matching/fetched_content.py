"""What a provider has fetched for this coordinator's jobs, by the prefixes that offers name.

An offer may claim any content, and cached content makes its price count less. So matching believes
a prefix once the provider has committed a job that needed the content.
"""

from collections.abc import Iterable

from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.offer import CACHED_PREFIX_BYTES
from quorate_protocol.units import Address

PREFIXES_KEPT = 64  # of each provider, the newest


def prefixes_of(spec: job_spec.JobSpec) -> list[bytes]:
    digests = [job_spec.image_digest(spec.image), *(cid_parts(item.cid)[1] for item in spec.inputs)]
    return [digest[:CACHED_PREFIX_BYTES] for digest in digests]


def note_commit(context: StepContext, owner: Address, spec: job_spec.JobSpec) -> None:
    known, found = context.state.fetched.get(owner) or (), prefixes_of(spec)
    if set(found) <= set(known):
        return
    newest = (*(one for one in known if one not in found), *found)
    context.state.fetched[owner] = newest[-PREFIXES_KEPT:]


def has_cached(
    context: StepContext, owner: Address, claimed: Iterable[bytes], wanted: frozenset[bytes]
) -> bool:
    """Claimed, and fetched before."""
    claims = wanted.intersection(claimed)
    return bool(claims) and not claims.isdisjoint(context.state.fetched.get(owner) or ())
