"""What callers of Court and Jobs need beside the typed calls: phases, evidence, and hashes.

They follow docket.vy, evidence.vy and Jobs.vy. Pure.
"""

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from quorate_contracts.abi_codec import encode
from quorate_contracts.artifact import artifact
from quorate_contracts.generated import court, jobs
from quorate_contracts.generated.contract_calls import plain
from quorate_protocol.codec.hashing import hash_tuple, keccak256
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitReceipt,
    Order,
    Reveal,
    Session,
)
from quorate_protocol.units import Address, Hash32


class Phase(IntEnum):
    """Where a case stands."""

    NONE = 0  # there is no case, or it failed
    DRAWING = 1
    VOTING = 2
    REVEALING = 3
    CLOSED = 4  # for good: a jury convicted the execution, or named its result as right


class Outcome(IntEnum):
    """How a case ended."""

    CONVICTED = 1
    ACQUITTED = 2
    FAILED = 3  # another case over the execution may follow


class RunEvidence(Struct, frozen=True):
    """One execution. `index` and `blind` open its assignmentId."""

    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]


class CaseEvidence(Struct, frozen=True):
    """An execution, and that of another owner that contradicts it."""

    session: Envelope[Session]
    order: Envelope[Order]
    run: RunEvidence  # of the accused
    contradiction: RunEvidence

    def shown(self) -> court.E:
        session, assigned = self.session.message, self.run.assignment.message
        return court.E(
            session.session_key,
            session.up_to,
            session.expires,
            self.session.sig,
            self.order.message,
            self.order.sig,
            assigned.pool,
            self.run.commit.message.class_id,
            _case_run(self.run),
            _case_run(self.contradiction),
        )


def _case_run(run: RunEvidence) -> court.Run:
    assignment, commit = run.assignment.message, run.commit.message
    return court.Run(
        run.index,
        run.blind,
        assignment.provider,
        assignment.price_per_hour,
        assignment.max_duration,
        assignment.accept_by,
        run.assignment.sig,
        commit.commitment,
        commit.encrypted_output,
        commit.usage_ms,
        commit.beacon_round,
        run.commit.sig,
    )


def job_run(run: RunEvidence, receipt: Envelope[CommitReceipt], reveal: Reveal) -> jobs.Run:
    return jobs.Run(
        run.index,
        run.blind,
        run.assignment.message,
        run.assignment.sig,
        run.commit.message,
        run.commit.sig,
        receipt.message.time,
        receipt.sig,
        reveal.exit_status,
        reveal.output_digest,
        reveal.salt,
    )


def case_id(filing: court.Filing) -> Hash32:
    return keccak256(encode((artifact("Court").functions["draw"].inputs[0],), [plain(filing)]))


def ballot(execution: Hash32, juror: Address, salt: Hash32, digest: Hash32) -> Hash32:
    return hash_tuple(execution, juror, salt, digest)


def link(juror: Address, voted: Hash32) -> Hash32:
    return Hash32(bytes(12) + hash_tuple(juror, voted)[12:])


def jury_bytes(jury: Sequence[Address]) -> bytes:
    """Returns those that were drawn so far, as calls list them."""
    return b"".join(jury)


def jury_hash(jury: Sequence[Address]) -> Hash32:
    return keccak256(jury_bytes(jury))
