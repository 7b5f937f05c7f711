"""Calls, queries and events of `TestToken`.

Written by `binding_writer` from the contract; do not edit it.
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import Call, Contract, Query, one
from quorate_protocol.units import Address, Amount


@dataclass(frozen=True, slots=True)
class Transfer:
    """An event of `TestToken`."""

    sender: Address
    receiver: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Approval:
    """An event of `TestToken`."""

    owner: Address
    spender: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Token(Contract):
    """The contract `TestToken`."""

    NAME: ClassVar[str] = "TestToken"

    def mint(self, receiver: Address, amount: Amount) -> Call:
        """Faucet. Refused on a deployment without one."""
        return self._call("mint", receiver, amount)

    def approve(self, spender: Address, amount: Amount) -> Call:
        """Lets `spender` move up to `amount`; the largest uint256 never runs down."""
        return self._call("approve", spender, amount)

    def transfer(self, receiver: Address, amount: Amount) -> Call:
        """Moves own tokens."""
        return self._call("transfer", receiver, amount)

    def transfer_from(self, owner: Address, receiver: Address, amount: Amount) -> Call:
        """Moves tokens that were approved."""
        return self._call("transferFrom", owner, receiver, amount)

    def name(self) -> Query[str]:
        return self._query("name", one)

    def symbol(self) -> Query[str]:
        return self._query("symbol", one)

    def decimals(self) -> Query[int]:
        return self._query("decimals", one)

    def faucet(self) -> Query[bool]:
        return self._query("FAUCET", one)

    def total_supply(self) -> Query[int]:
        return self._query("totalSupply", one)

    def balance_of(self, arg0: Address) -> Query[Amount]:
        return self._query("balanceOf", one, arg0)

    def allowance(self, arg0: Address, arg1: Address) -> Query[Amount]:
        return self._query("allowance", one, arg0, arg1)


EVENTS: tuple[type, ...] = (Transfer, Approval)
