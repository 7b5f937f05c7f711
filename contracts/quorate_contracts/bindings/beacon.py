"""The Beacon contract, which proves beacon rounds on chain. Only the court needs it."""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query
from quorate_protocol.ports import BeaconRound
from quorate_protocol.units import Hash32, Round, UnixSeconds
from quorate_runtime.beacon.bls import signature_words, words_bytes


@dataclass(frozen=True, slots=True)
class BeaconContract(Contract):
    """Rounds in drand's format, proven by a pairing."""

    NAME: ClassVar[str] = "Beacon"

    def submit(self, round_: BeaconRound) -> Call:
        """Proves a round. A round that is already proven costs only the base fee. Raises ValueError
        if the signature is no point of the curve.
        """
        return self._call(
            "submit", 300_000, round_.round, words_bytes(signature_words(round_.signature))
        )

    def randomness(self, number: Round) -> Query[Hash32]:
        """sha256 of the round's signature; zero while the round is not proven."""
        return self._query("randomness", Hash32, number)

    def round_at(self, timestamp: UnixSeconds) -> Query[Round]:
        """The newest round that has appeared by a time; 0 before the first."""
        return self._query("round_at", Round, timestamp)

    def first_round_from(self, timestamp: UnixSeconds) -> Query[Round]:
        """The first round that appears at or after a time."""
        return self._query("first_round_from", Round, timestamp)
