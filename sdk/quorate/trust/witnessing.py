"""Decides whether the client countersigns a commit of its job (PROTOCOL §5 Draw). Reads no clock
and keeps no state.

A witness says that this commit existed before its beacon round. If the client signed it later, or
for two commits of one assignment, a provider could choose its auditors. So in doubt the client
signs nothing, and the job is audited.
"""

from collections.abc import Callable

from quorate.trust.charge_verification import is_our_class
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.eip712 import digest as digest_of
from quorate_protocol.limits import BEACON_AHEAD_MAX
from quorate_protocol.messages import beacon_rounds
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.signed import Ack, Commit, Witness
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32, UnixSeconds

Claim = Callable[[Hash32, Hash32], Hash32]
"""(assignment hash, commit digest) -> the one commit of that assignment that may be witnessed: this
or an earlier one.
"""
ROUNDS_SLACK = 1  # the provider's clock may be one period ahead of ours


class Refusals:
    """Why the client signed no witness. The user sees these sentences."""

    WRONG_CLASS = "the commit was made with another image or host class"
    BAD_SIGNATURE = "the commit's signature does not verify"
    TOO_LATE = "its beacon round has already appeared"
    TOO_FAR = "its beacon round is too far in the future"
    SECOND = "another commit of this assignment was witnessed before"


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
    """Returns the Witness to sign, or a sentence that says why not."""
    message = commit.message
    digest = commit.digest(domain)
    try:
        signer(domain, commit, recover)
    # Not re-raised: a bad commit is simply not witnessed, and the coordinator refuses the
    # provider's message.
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
    return Witness(digest, digest_of(domain, ack), message.beacon_round, UnixSeconds(int(now)))
