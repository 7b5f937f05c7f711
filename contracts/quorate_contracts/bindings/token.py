"""The deployment's stablecoin. Only a devnet's token has `mint`."""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query, as_is
from quorate_protocol.units import Address, Amount

UNLIMITED = 2**256 - 1


@dataclass(frozen=True, slots=True)
class Token(Contract):
    """ERC-20 with six decimals."""

    NAME: ClassVar[str] = "TestToken"

    def mint(self, receiver: Address, amount: Amount) -> Call:
        """Makes tokens for an account. Devnets only."""
        return self._call("mint", 120_000, receiver, amount)

    def approve(self, spender: Address, amount: int = UNLIMITED) -> Call:
        """Lets a contract pull tokens: Stakes for slots and bonds, Escrow for deposits, Court
        for case bonds.
        """
        return self._call("approve", 80_000, spender, amount)

    def transfer(self, receiver: Address, amount: Amount) -> Call:
        """Moves the sender's tokens."""
        return self._call("transfer", 90_000, receiver, amount)

    def balance_of(self, account: Address) -> Query[Amount]:
        """Tokens of an account."""
        return self._query("balanceOf", Amount, account)

    def allowance(self, owner: Address, spender: Address) -> Query[int]:
        """How many tokens `spender` may still pull."""
        return self._query("allowance", as_is, owner, spender)

    def symbol(self) -> Query[str]:
        """The short name of the token, such as qUSD."""
        return self._query("symbol", str)
