"""Calls, queries and events of `Faults`.

Written by `binding_writer` from the contract; do not edit it.
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one
from quorate_protocol.messages.signed import Ack, Assignment, Commit
from quorate_protocol.units import Address, Amount, Hash32, Signature, UnixSeconds


@dataclass(frozen=True, slots=True)
class FaultProven:
    """An event of `Faults`."""

    liable: Address
    subject: Hash32
    at: UnixSeconds
    taken: Amount


@dataclass(frozen=True, slots=True)
class Faults(Contract):
    """The contract `Faults`."""

    NAME: ClassVar[str] = "Faults"

    def equivocation(
        self,
        assignment: Assignment,
        assignment_sig: Signature,
        one: Commit,
        one_sig: Signature,
        other: Commit,
        other_sig: Signature,
    ) -> Call:
        """The provider signed two Commits for one Assignment of a bonded coordinator. The first
        time costs it the job's most pay and a tenth of a slot's stake.
        """
        return self._call(
            "equivocation", assignment, assignment_sig, one, one_sig, other, other_sig
        )

    def two_acks(
        self, coordinator: Address, one: Ack, one_sig: Signature, other: Ack, other_sig: Signature
    ) -> Call:
        """The coordinator signed two Acks for one job, so it could choose between two draws."""
        return self._call("two_acks", coordinator, one, one_sig, other, other_sig)

    def stakes(self) -> Query[Address]:
        return self._query("STAKES", one)

    def slot_stake(self) -> Query[Amount]:
        return self._query("SLOT_STAKE", one)

    def gas_fee(self) -> Query[Amount]:
        return self._query("GAS_FEE", one)

    def evidence_age(self) -> Query[int]:
        return self._query("EVIDENCE_AGE", one)

    def last_fault(self, arg0: Address, arg1: bool) -> Query[int]:
        return self._query("last_fault", one, arg0, arg1)


EVENTS: tuple[type, ...] = (FaultProven,)
