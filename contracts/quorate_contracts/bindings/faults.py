"""The Faults contract: faults that signatures prove without a jury (PROTOCOL §5, §6)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from msgspec.structs import astuple

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.crypto.hashing import keccak256, word
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Ack,
    Assignment,
    Commit,
    CommitSet,
    Order,
    Reveal,
    Statement,
)
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32, UnixSeconds


class FaultKind(IntEnum):
    """What was proven."""

    EQUIVOCATION = 1  # two Commits for one assignment
    UNREVEALED = 2  # a demanded commitment was not opened
    TWO_ACKS = 3
    TWO_STATEMENTS = 4
    LATE_ACK = 5  # signed after the coordinator had retired
    UNOPENED_SECRET = 6


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand for a reveal or a secret. `demander` is zero once it has ended."""

    demander: Address
    liable: Address
    answer_by: UnixSeconds  # inclusive; 0 = never demanded
    wanted: Hash32  # what the answer opens: a commitment, or the hash of a secret
    cost: Amount  # pay for the whole maxDuration; 0 for a secret

    @property
    def is_open(self) -> bool:
        """Whether it was neither answered nor punished."""
        return self.demander != ZERO_ADDRESS


@dataclass(frozen=True, slots=True)
class Faults(Contract):
    """Takes stake and bonds for proven faults. Anyone may send the proofs."""

    NAME: ClassVar[str] = "Faults"

    def equivocation(
        self, assignment: Envelope[Assignment], one: Envelope[Commit], other: Envelope[Commit]
    ) -> Call:
        """Proves that a provider signed two Commits for one assignment."""
        return self._call(
            "equivocation",
            500_000,
            astuple(assignment.message),
            words(assignment.sig),
            astuple(one.message),
            words(one.sig),
            astuple(other.message),
            words(other.sig),
        )

    def demand_reveal(
        self, closed: Envelope[CommitSet], assignment: Assignment, commit: Envelope[Commit]
    ) -> Call:
        """Asks a provider to open its commitment, after an approval of `jury_gas_fee`."""
        return self._call(
            "demand_reveal",
            600_000,
            _commit_set(closed.message),
            words(closed.sig),
            astuple(assignment),
            astuple(commit.message),
            words(commit.sig),
        )

    def answer_reveal(self, reveal: Reveal) -> Call:
        """Opens a commitment that was demanded."""
        place, status = reveal.assignment_hash, reveal.exit_status
        return self._call(
            "answer_reveal", 250_000, place, status, reveal.output_digest, reveal.salt
        )

    def two_acks(self, coordinator: Address, one: Envelope[Ack], other: Envelope[Ack]) -> Call:
        """Proves that a coordinator signed two Acks for one job."""
        return self._call(
            "two_acks",
            400_000,
            coordinator,
            astuple(one.message),
            words(one.sig),
            astuple(other.message),
            words(other.sig),
        )

    def late_ack(self, coordinator: Address, ack: Envelope[Ack]) -> Call:
        """Proves that a coordinator took an order after it had retired."""
        return self._call("late_ack", 350_000, coordinator, astuple(ack.message), words(ack.sig))

    def two_statements(
        self, coordinator: Address, one: Envelope[Statement], other: Envelope[Statement]
    ) -> Call:
        """Proves that a coordinator signed two Statements of one number for one provider."""
        return self._call(
            "two_statements",
            400_000,
            coordinator,
            astuple(one.message),
            words(one.sig),
            astuple(other.message),
            words(other.sig),
        )

    def demand_secret(self, order: Order, ack: Envelope[Ack]) -> Call:
        """Asks a coordinator to open a job's secret, after an approval of `jury_gas_fee`."""
        return self._call(
            "demand_secret", 500_000, astuple(order), astuple(ack.message), words(ack.sig)
        )

    def answer_secret(self, job: Hash32, secret: Hash32) -> Call:
        """Opens a secret that was demanded."""
        return self._call("answer_secret", 250_000, job, secret)

    def punish_unanswered(self, subject: Hash32) -> Call:
        """Takes what an unanswered demand costs. `subject`: assignment hash, or job."""
        return self._call("punish_unanswered", 500_000, subject)

    def withdraw(self, account: Address) -> Call:
        """Pays an account's credit to its payout address."""
        return self._call("withdraw", 150_000, account)

    def demand(self, subject: Hash32) -> Query[Demand]:
        """The demand over an assignment hash or a job."""
        return self._query("demands", _demand, subject)

    def credit_of(self, account: Address) -> Query[Amount]:
        """What `withdraw` would pay."""
        return self._query("credit_of", Amount, account)

    def burned(self) -> Query[Amount]:
        """Tokens that nothing can move."""
        return self._query("burned", Amount)


def _demand(
    demander: Address, liable: Address, answer_by: UnixSeconds, wanted: Hash32, cost: Amount
) -> Demand:
    return Demand(Address(demander), Address(liable), answer_by, Hash32(wanted), cost)


def _commit_set(message: CommitSet) -> tuple[object, ...]:
    """The contract needs the entries, and of the other lists their EIP-712 hashes only."""
    blinds = keccak256(b"".join(message.blinds))
    slots = keccak256(b"".join(word(each) for each in message.slots))
    return (
        message.job_id,
        message.batch,
        [astuple(entry) for entry in message.ordered],
        blinds,
        message.beacon_round,
        message.secret,
        message.audit_ppm,
        slots,
        message.skips_hash,
        message.witness_hash,
        message.closed_at,
    )
