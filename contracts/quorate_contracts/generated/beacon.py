"""Calls, queries and events of `Beacon`.

Written by `binding_writer` from the contract; do not edit it.
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one
from quorate_protocol.units import Hash32, Round, Seconds, UnixSeconds


@dataclass(frozen=True, slots=True)
class RoundProven:
    """An event of `Beacon`."""

    round: Round
    randomness: Hash32


@dataclass(frozen=True, slots=True)
class Beacon(Contract):
    """The contract `Beacon`."""

    NAME: ClassVar[str] = "Beacon"

    def submit(self, round: Round, signature: bytes) -> Call:
        """Proves one round. A round that is known already is left as it is, so two senders do no
        harm to each other.
        """
        return self._call("submit", round, signature)

    def round_at(self, timestamp: UnixSeconds) -> Query[int]:
        """The newest round that has appeared at a moment; 0 before the first."""
        return self._query("round_at", one, timestamp)

    def first_round_from(self, timestamp: UnixSeconds) -> Query[int]:
        """The first round that appears at or after a moment."""
        return self._query("first_round_from", one, timestamp)

    def time_of(self, round: Round) -> Query[int]:
        """When a round appears."""
        return self._query("time_of", one, round)

    def genesis(self) -> Query[int]:
        return self._query("GENESIS", one)

    def period(self) -> Query[Seconds]:
        return self._query("PERIOD", one)

    def randomness(self, arg0: int) -> Query[Hash32]:
        return self._query("randomness", one, arg0)


EVENTS: tuple[type, ...] = (RoundProven,)
