"""Whether the client countersigns a commit of its job (PROTOCOL §5 Draw). The moment and what
was witnessed come in as arguments.

A witness says: this commit stood before its beacon round existed. Signed later, or for two
commits of one assignment, it would let a provider choose its auditors, so in doubt nothing is
signed; the job is then simply audited.
"""

from collections.abc import Callable

from quorate.trust.charge_verification import is_our_class
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import BEACON_AHEAD_MAX
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Ack, Commit, Witness
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import beacon_rounds
from quorate_protocol.units import Hash32, UnixSeconds

Claim = Callable[[Hash32, Hash32], Hash32]
"""(assignment hash, commit digest) -> the commit of that assignment that is witnessed: this one, or the one that came before."""
ROUNDS_SLACK = 1  # the provider's clock may be a period ahead of ours


class Refusals:
    """Why nothing was signed; shown to the user and counted."""

    WRONG_CLASS = "the commit was made with another image or host class"
    BAD_SIGNATURE = "the commit's signature does not verify"
    TOO_LATE = "its beacon round has already appeared"
    TOO_FAR = "its beacon round lies too far ahead"
    SECOND = "another commit for the same assignment was witnessed before"


def consider(
    commit: Envelope[Commit],
    ack: Ack,
    spec: JobSpec,
    info: BeaconInfo,
    now: float,
    domain: Domain,
    recover: Recover,
    claim: Claim,
) -> Witness | str:
    """The Witness to sign, or a sentence why not."""
    message = commit.message
    digest = commit.digest(domain)
    try:
        signer(domain, commit, recover)
    # not re-raised: a bad commit is simply not witnessed, and the provider's own message fails at
    # the coordinator
    except Refused:
        return Refusals.BAD_SIGNATURE
    if not is_our_class(message, ack, spec):
        return Refusals.WRONG_CLASS
    newest = beacon_rounds.round_at(info, int(now))
    if message.beacon_round <= newest:
        return Refusals.TOO_LATE
    if message.beacon_round > newest + BEACON_AHEAD_MAX + ROUNDS_SLACK:
        return Refusals.TOO_FAR
    if claim(message.assignment_hash, digest) != digest:
        return Refusals.SECOND
    return Witness(digest, message.beacon_round, UnixSeconds(int(now)))
