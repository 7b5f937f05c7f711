"""Which hosts gave results that agreed, for each image and comparison (PROTOCOL 2.42).

It is information for clients, and decides nothing.
"""

from collections.abc import Sequence
from itertools import combinations

from quorate_coordinator.core.model.entities import AgreedHosts, Job
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.units import Hash32

ENTRIES_MAX = 4_096  # the oldest goes first
PAIRS_MAX = 64  # of one entry; the one that agreed longest ago goes first


def key_of(pool: Hash32, spec: JobSpec) -> Hash32:
    """The tolerance is part of it: hosts that agree within a large one may not within a small."""
    compare = spec.compare
    profile = spec.profile().digest()
    return hash_tuple(
        pool, image_digest(spec.image), profile, int(compare.comparator), compare.tolerance_ppm
    )


def note(context: StepContext, job: Job, group: Sequence[Lease]) -> None:
    """Counts each pair of different hosts once for a job whose group is accepted."""
    accepts, table = context.state.accepts, context.state.siblings
    hosts = sorted({accepts[lease.assignment_hash].message.host for lease in group})
    pairs = tuple(combinations(hosts, 2))
    if not pairs:
        return
    key = key_of(job.ack.message.pool, job.submission.spec)
    known = table.get(key) or ()
    counts = {(item.one, item.other): item.agreed for item in known}
    kept = tuple(item for item in known if (item.one, item.other) not in pairs)
    fresh = tuple(AgreedHosts(*pair, counts.get(pair, 0) + 1) for pair in pairs)
    if key not in table and len(table) >= ENTRIES_MAX:
        del table[next(iter(table))]
    table[key] = (*kept, *fresh)[-PAIRS_MAX:]
