"""The operator's money on chain: puts capital in and takes it out, locks guarantees, sets limits,
and takes the bond back.

Each step is asked from the chain first, so that a repeated command does nothing twice.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate_contracts import encodings
from quorate_contracts.account import goals
from quorate_contracts.account.delivery import send_all
from quorate_contracts.calls import ask, transact
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import escrow
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.generated.escrow import LimitsOf
from quorate_contracts.log_search import newest_logs, topic_of
from quorate_contracts.money_texts import currency_of
from quorate_coordinator.chain.registration import is_registered
from quorate_protocol.limits import DAY
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import tabs
from quorate_protocol.rules.tabs import Pay
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, Seconds, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded
from quorate_runtime.chain.transactions import TRANSFER_GAS

RETIRED = "retired"  # a mark in the home of a coordinator that has retired

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Retirement:
    """What the chain says of a coordinator that leaves. Times are the chain's."""

    is_registered: bool
    retired_at: UnixSeconds  # 0 while it has not
    due_at: UnixSeconds  # from when on the bond can be taken; 0 before it has retired
    bond: Amount
    now: UnixSeconds


@dataclass(frozen=True, slots=True)
class Holding:
    """What one key can send away."""

    tokens: Amount
    wei: int  # less the gas of the transaction that sends them


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is locked for one provider, and not paid."""

    payee: Address
    tab: escrow.Tab

    @property
    def free(self) -> Amount:
        """What vouchers can still take."""
        return Amount(self.tab.locked - self.tab.paid)


@dataclass(slots=True)
class OwnMoney:
    """One coordinator's money on chain. `sender` sends for its account key."""

    client: ChainClient
    contracts: Contracts
    sender: Sender
    report: Report

    @property
    def account(self) -> Address:
        return self.sender.address

    async def retirement(self) -> Retirement:
        stakes = self.contracts.stakes
        retired_at = await ask(self.client, stakes.exited_at(self.account))
        after: Seconds = self.contracts.deployment.constants().unbond_after
        return Retirement(
            is_registered=await is_registered(self.client, self.contracts, self.account),
            retired_at=UnixSeconds(retired_at),
            due_at=UnixSeconds(retired_at + after if retired_at else 0),
            bond=await ask(self.client, stakes.bond_of(self.account)),
            now=UnixSeconds((await self.client.head()).time),
        )

    async def bond_lacks(self) -> Amount:
        """Returns what was burned of the bond; 0 for one that leaves."""
        found = await self.retirement()
        whole = self.contracts.deployment.constants().coordinator_bond
        is_here = found.is_registered and not found.retired_at
        return Amount(whole - found.bond if is_here else 0)

    async def top_up(self, amount: Amount) -> None:
        """Restores a part of the bond. Raises Refused if the account has too little."""
        held = await self.balance()
        if held < amount:
            raise Refused(
                Code.BAD_AMOUNT,
                f"{usd(amount)} USD of bond are missing, and the account has {usd(held)}: send it "
                f"more (0x{self.account.hex()})",
            )
        stakes = self.contracts.stakes.address
        await self.send(*goals.top_up(self.contracts, amount, await self._allowance(stakes)))

    # ---- capital in Escrow

    async def capital(self, of: Address | None = None) -> Amount:
        """Returns a balance in Escrow: the account's, or that of the key `of`."""
        return await ask(self.client, self.contracts.escrow.balance_of(of or self.account))

    async def deposit(self, amount: Amount, of: Address | None = None) -> None:
        """Moves tokens of the account into its balance in Escrow, or into that of the key `of`.

        Raises Refused if the account has too few.
        """
        held = await self.balance()
        if held < amount:
            currency = currency_of(self.contracts.deployment)
            lacks = currency.send(self.account, amount - held)
            raise Refused(Code.BAD_AMOUNT, f"the account has {usd(held)} USD: {lacks}")
        allowance = await self._allowance(self.contracts.escrow.address)
        await self.send(*goals.deposit_of(self.contracts, amount, of, allowance))

    async def limits(self, of: Address | None = None) -> LimitsOf:
        return await ask(self.client, self.contracts.escrow.limits_of(of or self.account))

    async def limits_suggested(self) -> tuple[Amount, Amount]:
        """Returns the limits that the last 30 days suggest, for payrolls and for locks."""
        pays = await self._days(escrow.Payroll)
        return tabs.limit_suggested(pays), tabs.limit_suggested(await self._days(escrow.Locked))

    async def _days(self, kind: type[escrow.Payroll] | type[escrow.Locked]) -> list[Amount]:
        """Returns what events of the account moved on each of the last 30 days."""
        since = (await self.client.head()).time - tabs.LIMIT_DAYS * DAY
        days: dict[int, int] = defaultdict(int)
        for event, at in await self._events(kind, since):
            assert isinstance(event, escrow.Payroll | escrow.Locked)
            days[at // DAY] += event.amount
        return [Amount(amount) for _, amount in sorted(days.items())]

    async def _events(self, kind: type, since: int) -> list[tuple[object, int]]:
        """Returns events of Escrow whose first member is the account, with their times, the newest
        first, down to a moment.
        """
        topics = (topic_of("Escrow", kind), Hash32(bytes(12) + self.account))
        place, head = self.contracts.escrow.address, (await self.client.head()).number
        found: list[tuple[object, int]] = []
        async for _, logs in newest_logs(
            self.client, self.contracts, place, topics, BlockNumber(0), head
        ):
            for log in logs:
                if log.block_time < since:
                    return found
                event = self.contracts.event(log.address, log.topics, log.data)
                if isinstance(event, kind):
                    found.append((event, log.block_time))
        return found

    async def guarantees(self) -> list[Guarantee]:
        """Returns the tabs that the account ever locked, and that hold or pay something."""
        found = await self._events(escrow.Locked, 0)
        payees = {event.payee for event, _ in found if isinstance(event, escrow.Locked)}
        tabs_found = [Guarantee(payee, await self.tab(payee)) for payee in sorted(payees)]
        return [each for each in tabs_found if each.free or each.tab.closes_at]

    async def tab(self, payee: Address, payer: Address | None = None) -> escrow.Tab:
        """Returns a tab for a payee: the account's, or that of another payer."""
        return await ask(self.client, self.contracts.escrow.tab(payer or self.account, payee))

    # ---- keys

    async def statement_key(self) -> Address:
        return await ask(self.client, self.contracts.stakes.operator_key(self.account))

    async def posting_key(self) -> Address:
        return await ask(self.client, self.contracts.stakes.posting_key(self.account))

    # ---- tokens and coins

    async def balance(self) -> Amount:
        return await ask(self.client, self.contracts.token.balance_of(self.account))

    async def spendable(self, of: Address | None = None) -> Holding:
        """Returns what the account, or the key `of`, can send away now."""
        key = self.account if of is None else of
        gas = await self.client.gas_cost(TRANSFER_GAS)
        tokens = await ask(self.client, self.contracts.token.balance_of(key))
        return Holding(tokens, max(0, await self.client.balance(key) - gas))

    async def send_coins(self, to: Address) -> int:
        """Sends all coins but the gas of this transaction, and returns them in wei. It returns 0
        if there are too few.
        """
        value = (await self.spendable()).wei
        if not value:
            return 0
        purpose = f"coins-{await self.client.nonce(self.account)}"
        await transact(self.sender, purpose, Call(to, b"", TRANSFER_GAS), value)
        return value

    async def _allowance(self, spender: Address) -> Amount:
        return await ask(self.client, self.contracts.token.allowance(self.account, spender))

    async def send(self, *calls: Call) -> None:
        """Sends calls of the account. While one waits for a block, sending the same waits for it.

        Raises Refused with the contract's reason, or with what the account lacks for gas.
        """
        nonce = await self.client.nonce(self.account)
        try:
            await send_all(self.sender, calls, nonce)
        except Unfunded as error:
            currency = currency_of(self.contracts.deployment)
            wei = await self.client.gas_cost(sum(call.gas for call in calls))
            wei -= min(wei, await self.client.balance(self.account))
            raise Refused(
                Code.CHAIN,
                f"the account cannot pay for gas: {currency.send(self.account, wei=wei)}",
            ) from error


def payroll_call(contracts: Contracts, account: Address, root: Hash32, pays: Sequence[Pay]) -> Call:
    words = encodings.pairs((pay.payee, pay.cumulative) for pay in pays)
    return contracts.escrow.payroll(account, root, words)


def amount_of(text: str, held: Amount, name: str = "--amount") -> Amount:
    """Returns the amount that a text names: `all`, or USD. Raises Refused for another text, or for
    more than there is.
    """
    if text == "all":
        return held
    whole, _, part = text.partition(".")
    is_number = (whole + part).isascii() and (whole + part).isdecimal() and len(whole) <= 20
    if not is_number or not whole:
        raise Refused(Code.MALFORMED, f"{name} {text[:40]!r}: a number of USD, or all")
    if len(part) > 6:
        raise Refused(Code.MALFORMED, f"{name} {text[:40]}: USD have at most 6 decimals")
    amount = Amount(int(whole) * 10**6 + int(part.ljust(6, "0")))
    if not 0 < amount <= held:
        raise Refused(Code.BAD_AMOUNT, f"{name} {text}: there are {usd(held)} USD")
    return amount
