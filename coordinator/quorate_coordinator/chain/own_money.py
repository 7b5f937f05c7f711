"""The operator's money on chain: puts capital in and takes it out, locks guarantees, sets limits,
and takes the bond back.

Each step is asked from the chain first, so that a repeated command does nothing twice.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate_contracts import encodings
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
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Seconds,
    UnixSeconds,
    usd,
)
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender, Unfunded
from quorate_runtime.chain.transactions import TRANSFER_GAS

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
        """The coordinator's account."""
        return self.sender.address

    async def retirement(self) -> Retirement:
        """Asks the chain how far the retirement is."""
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

    async def retire(self) -> None:
        """Starts the unbonding of the bond. Calling it again does nothing."""
        if not (await self.retirement()).retired_at:
            await self.send("retire", self.contracts.stakes.exit())

    async def unbond(self) -> Amount:
        """Takes the bond back to the account, and returns it. Raises Refused before its time."""
        bond = (await self.retirement()).bond
        if bond:
            await self.send("unbond", self.contracts.stakes.unbond_coordinator())
        return bond

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
        stakes, name = self.contracts.stakes, await self.once("top-up")
        await self.send(f"{name}-approve", self.contracts.token.approve(stakes.address, amount))
        await self.send(name, stakes.top_up(amount))

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
        place, token = self.contracts.escrow, self.contracts.token
        # A repeat after a kill waits for the deposit that it sent, which still has its allowance.
        if await ask(self.client, token.allowance(self.account, place.address)) < amount:
            await self.send(await self.once("approve"), token.approve(place.address, amount))
        await self.send(await self.once("deposit"), place.deposit(amount, ZERO_ADDRESS))
        if of is not None:
            words = encodings.pairs([(of, amount)])
            await self.send(await self.once("pass-on"), place.pay(words))

    async def take_out(self, amount: Amount) -> None:
        """Moves a part of the balance in Escrow to the account's tokens."""
        await self.send(await self.once("take-out"), self.contracts.escrow.withdraw(amount))

    async def limits(self, of: Address | None = None) -> LimitsOf:
        """Returns what the posting key may move in a day, and what it moved today."""
        return await ask(self.client, self.contracts.escrow.limits_of(of or self.account))

    async def set_limits(self, payroll: Amount, locks: Amount) -> None:
        """Says what the posting key may pay, and what it may lock and give back, in a day."""
        call = self.contracts.escrow.set_limits(payroll, locks)
        await self.send(await self.once("limits"), call)

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

    async def lock(self, payee: Address, amount: Amount) -> None:
        """Locks more for a provider."""
        await self.send(await self.once("lock"), self.contracts.escrow.lock(payee, amount))

    async def close(self, payee: Address) -> None:
        """Announces the end of a guarantee."""
        await self.send(await self.once("close"), self.contracts.escrow.close(payee))

    async def finish(self, payee: Address) -> None:
        """Takes back what is left of a tab whose delay has passed."""
        call = self.contracts.escrow.finish(self.account, payee)
        await self.send(await self.once("finish"), call)

    # ---- keys

    async def statement_key(self) -> Address:
        """Returns the statement key that the chain knows."""
        return await ask(self.client, self.contracts.stakes.operator_key(self.account))

    async def posting_key(self) -> Address:
        """Returns the posting key that the chain knows."""
        return await ask(self.client, self.contracts.stakes.posting_key(self.account))

    async def replace_statement_key(self, key: Address) -> None:
        """Names another statement key."""
        await self.send(f"statement-{key.hex()}", self.contracts.stakes.rotate_key(key))

    async def replace_posting_key(self, key: Address) -> None:
        """Names another posting key."""
        call = self.contracts.stakes.change_posting_key(key)
        await self.send(f"posting-{key.hex()}-{await self.once('swap')}", call)

    # ---- tokens and coins

    async def balance(self) -> Amount:
        """Returns the account's tokens."""
        return await ask(self.client, self.contracts.token.balance_of(self.account))

    async def spendable(self, of: Address | None = None) -> Holding:
        """Returns what the account, or the key `of`, can send away now."""
        key = self.account if of is None else of
        gas = await self.client.gas_cost(TRANSFER_GAS)
        tokens = await ask(self.client, self.contracts.token.balance_of(key))
        return Holding(tokens, max(0, await self.client.balance(key) - gas))

    async def send_tokens(self, to: Address, amount: Amount) -> None:
        """Sends tokens. While such a transaction waits to be mined, calling it again waits for that
        one.
        """
        await self.send(await self.once("withdraw"), self.contracts.token.transfer(to, amount))

    async def send_coins(self, to: Address) -> int:
        """Sends all coins but the gas of this transaction, and returns them in wei. It returns 0
        if there are too few.
        """
        value = (await self.spendable()).wei
        if not value:
            return 0
        purpose = await self.once("coins")
        await transact(self.sender, purpose, Call(to, b"", TRANSFER_GAS), value)
        return value

    async def once(self, what: str) -> str:
        """Returns a purpose that stays the same until its transaction is in a block."""
        return f"{what}-{await self.client.nonce(self.account)}"

    async def send(self, purpose: str, call: Call) -> None:
        """Sends a call of the account once. Raises Refused with the contract's reason, or with what
        the account lacks for gas.
        """
        try:
            await transact(self.sender, purpose, call)
        except Unfunded as error:
            currency = currency_of(self.contracts.deployment)
            wei = await self.client.gas_cost(call.gas)
            wei -= min(wei, await self.client.balance(self.account))
            raise Refused(
                Code.CHAIN,
                f"the account cannot pay for gas: {currency.send(self.account, wei=wei)}",
            ) from error


def payroll_call(contracts: Contracts, account: Address, root: Hash32, pays: Sequence[Pay]) -> Call:
    """Returns the payroll of an account."""
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
