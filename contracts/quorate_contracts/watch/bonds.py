"""Sends a watcher's transactions under one key: tokens for bonds first, then the call."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_contracts.bindings.calls import Call, Query
from quorate_contracts.deploy import Contracts
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, usd
from quorate_runtime.chain.client import ChainClient

Pay = Callable[[str, Call], Awaitable[object]]
"""Sends a call once per purpose, under the key that pays."""
Fund = Callable[[Address, Amount], Awaitable[None]]
"""Sends tokens to the key, if another key here has some. It may do nothing."""


async def fund_nothing(account: Address, amount: Amount) -> None:
    """Is the `Fund` of a program that has no other key."""


@dataclass(frozen=True, slots=True)
class BondedSender:
    """The `Send` of a watcher. `account` returns the key that sends now."""

    client: ChainClient
    contracts: Contracts
    account: Callable[[], Address]
    pay: Pay
    fund: Fund = fund_nothing

    def address(self) -> Address:
        """Returns the account that sends."""
        return self.account()

    async def send(self, purpose: str, call: Call, bond: Amount) -> None:
        """Sends a call. A call that the contract would refuse costs no gas.

        Raises Refused, with what to send where if tokens for the bond are missing, and Unavailable.
        """
        if bond:
            await self.prepare(bond)
        await self.client.call(call.to, call.data, self.account())
        await self.pay(purpose, call)

    async def prepare(self, bond: Amount) -> None:
        """Gets tokens for a bond, and lets the contract take them. Raises as `send` does."""
        token, me, spender = self.contracts.token, self.account(), self.contracts.challenges.address
        if await self._ask(token.balance_of(me)) < bond:
            await self.fund(me, bond)
        has = await self._ask(token.balance_of(me))
        if has < bond:
            raise Refused(
                Code.CHAIN,
                f"a demand takes a bond of {usd(bond)} USD, and 0x{me.hex()} has {usd(has)}: send "
                f"it tokens of 0x{token.address.hex()}",
            )
        if await self._ask(token.allowance(me, spender)) < bond:
            nonce = await self.client.nonce(me)
            await self.pay(f"watch-approve-{nonce}", token.approve(spender))

    async def _ask(self, query: Query[int]) -> int:
        return query.decode(await self.client.call(query.to, query.data))
