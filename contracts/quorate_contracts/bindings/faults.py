"""The Faults contract: faults that signatures prove without a jury (PROTOCOL §5, §6)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from msgspec.structs import astuple

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack, Assignment, Commit
from quorate_protocol.units import Address, Amount


class FaultKind(IntEnum):
    """What was proven."""

    EQUIVOCATION = 1  # two Commits for one assignment
    TWO_ACKS = 2  # for one job


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

    def withdraw(self, account: Address) -> Call:
        """Pays an account's credit to its payout address."""
        return self._call("withdraw", 150_000, account)

    def credit_of(self, account: Address) -> Query[Amount]:
        """What `withdraw` would pay."""
        return self._query("credit_of", Amount, account)

    def burned(self) -> Query[Amount]:
        """Tokens that nothing can move."""
        return self._query("burned", Amount)
