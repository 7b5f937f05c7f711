"""Takes a client's money out of the escrow (PROTOCOL §6).

What is in the balance is paid at once. What is locked for the coordinator it gives back when it is
asked; if it does not, the client closes its tab, waits, and finishes it. The ledger records a
withdrawal before its first transaction, and each transaction has a purpose that is sent once. So
the same command, repeated after a crash, goes on where it was.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate.base.errors import QuorateError, RefusedError, UsageError, translated
from quorate.client.base.client_ledger import Ledger, WithdrawalRecord
from quorate.client.base.profile import Profile
from quorate.client.base.session import Notice
from quorate.client.money.balances import Balances, CoordinatorBalance, read_balances
from quorate.client.money.chain_access import ChainAccess
from quorate.job.quantities import format_amount
from quorate_contracts.account.delivery import LONG_SECONDS, send_again, send_in_time, sent_before
from quorate_contracts.artifact import artifact
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, UnixSeconds
from quorate_runtime.chain.types import Receipt

GAS = 400_000  # of the four transactions together, with some reserve
CLOCK_SECONDS = 5  # our clock may be ahead of the next block's time by so much
GIVE_BACK_SECONDS = 120.0  # until what the coordinator promised must be on chain
POLL_SECONDS = 1.0

GiveBack = Callable[[Amount], Awaitable[Amount]]
"""Asks the coordinator for so much of the tab. Returns what it frees now."""


@dataclass(frozen=True, slots=True)
class WithdrawalState:
    """What a withdrawal did, and what it waits for.

    `paid` is None until the money has reached the wallet. `ready_at` is when the next step can be
    taken, 0 if nothing is to be waited for.
    """

    record: WithdrawalRecord
    paid: Amount | None = None
    ready_at: UnixSeconds = UnixSeconds(0)


class WithdrawalFlow:
    """One run of `quorate withdraw` for one profile on one chain."""

    def __init__(
        self,
        chain: ChainAccess,
        profile: Profile,
        ledger: Ledger,
        clock: Clock,
        notice: Notice,
        give_back: GiveBack | None = None,
    ) -> None:
        """`give_back` is None if the coordinator does not answer."""
        self._chain, self._ledger, self._clock = chain, ledger, clock
        self._account = profile.account.address
        self._give_back, self._notice = give_back, notice
        self._sender = chain.sender(profile.account, profile.home, clock)

    async def balances(self) -> Balances:
        return await read_balances(self._chain, self._account, self._ledger)

    async def begin(self, amount: Amount | None, receiver: Address | None) -> WithdrawalRecord:
        """Returns the withdrawal that is under way, or records a new one.

        None means all that can be withdrawn; the receiver None means the wallet itself. Raises
        UsageError if another amount or receiver is under way, and RefusedError if there is less to
        withdraw, or too little coin for gas.
        """
        place = receiver or self._account
        under_way = self._ledger.open_withdrawal()
        if under_way is not None:
            if amount in (None, under_way.amount) and place in (self._account, under_way.receiver):
                return under_way
            raise UsageError(
                f"a withdrawal of {format_amount(under_way.amount)} to "
                f"0x{under_way.receiver.hex()} is under way; let `quorate withdraw` finish it, "
                "then withdraw again"
            )
        found = await self.balances()
        ours = found.of(self._chain.identity.coordinator)
        largest = Amount(found.balance + ours.withdrawable)
        wanted = largest if amount is None else amount
        if not wanted or wanted > largest:
            raise RefusedError(
                Code.INSUFFICIENT_FUNDS.value,
                "The balance does not cover it.",
                f"at most {format_amount(largest)} can be withdrawn now: of "
                f"{format_amount(Amount(found.balance + ours.free))} in the escrow, "
                f"{format_amount(ours.vouched)} is promised by your vouchers and "
                f"{format_amount(ours.promises.orders)} is promised to open orders",
                "`quorate balance` shows what is promised",
            )
        await self._check_gas(found)
        if amount is None and ours.vouched:
            self._notice(
                f"{format_amount(ours.vouched)} stays in the tab: your vouchers promise it for "
                "bills, and what they promise beyond pays for later orders"
            )
        record = WithdrawalRecord(f"withdraw-{secrets.token_hex(6)}", wanted, place)
        return self._ledger.begin_withdrawal(record)

    async def advance(self, record: WithdrawalRecord) -> WithdrawalState:
        """Takes every step that can be taken now. Repeating it does nothing twice.

        Raises UnavailableError if the chain does not answer, RefusedError with the contract's
        reason.
        """
        with translated():
            receipt = await sent_before(self._sender, f"{record.id}/withdraw")
            if receipt is None:
                found = await self.balances()
                ours = found.of(self._chain.identity.coordinator)
                if found.balance < record.amount and ours.free:
                    ready_at = await self._unlock(record, found, ours)
                    if ready_at:
                        return WithdrawalState(record, ready_at=ready_at)
                    found = await self.balances()
                amount = Amount(min(record.amount, found.balance))
                if not amount:
                    self._ledger.end_withdrawal(record)
                    self._notice("vouchers took all that was locked: nothing is left to withdraw")
                    return WithdrawalState(record, paid=Amount(0))
                call = self._chain.escrow.withdraw(amount)
                receipt = await self._send(f"{record.id}/withdraw", call)
            paid = _paid(receipt)
            if record.receiver != self._account:
                move = self._chain.token.transfer(record.receiver, paid)
                await self._send(f"{record.id}/transfer", move)
            self._ledger.end_withdrawal(record)
            return WithdrawalState(record, paid=paid)

    async def _send(self, purpose: str, call: Call) -> Receipt:
        return await send_again(self._sender, purpose, call, LONG_SECONDS)

    async def _unlock(
        self, record: WithdrawalRecord, found: Balances, ours: CoordinatorBalance
    ) -> UnixSeconds:
        """Moves what is free in the tab into the balance. Returns when the next step is due; 0 =
        it is there.
        """
        escrow, coordinator = self._chain.escrow, ours.coordinator
        closes_at = ours.tab.closes_at
        if not closes_at:
            if await self._is_given_back(record, Amount(record.amount - found.balance)):
                return UnixSeconds(0)
            self._notice("the coordinator gives back too little: the tab is closed instead")
            await self._send(f"{record.id}/close", escrow.close(coordinator))
            return (await self.balances()).of(coordinator).tab.closes_at
        # A chain without transactions may make no blocks, so our own clock counts too.
        if max(found.block_time, self._clock.now() - CLOCK_SECONDS) <= closes_at:
            return UnixSeconds(closes_at + 1)
        finish = escrow.finish(self._account, coordinator)
        sent = await send_in_time(self._sender, f"{record.id}/finish/{closes_at}", finish)
        return UnixSeconds(0) if sent is not None else UnixSeconds(found.block_time + 1)

    async def _is_given_back(self, record: WithdrawalRecord, lacking: Amount) -> bool:
        """Asks the coordinator, and waits until the chain has what it promised."""
        if self._give_back is None:
            return False
        try:
            promised = await self._give_back(lacking)
        except QuorateError as error:
            if isinstance(error, RefusedError) and error.code == Code.BUSY.value:
                raise  # it gives back a part once a day: repeat the command then
            self._notice(str(error))
            return False  # not re-raised: closing the tab needs no coordinator
        limit = self._clock.now() + GIVE_BACK_SECONDS
        while promised >= lacking and self._clock.now() < limit:
            if (await self.balances()).balance >= record.amount:
                return True
            await self._clock.sleep(POLL_SECONDS)
        return False

    async def _check_gas(self, found: Balances) -> None:
        client, currency = self._chain.client, self._chain.currency
        with translated():
            needed = await client.gas_cost(GAS)
            if found.coins_wei < needed:
                raise Refused(
                    Code.CHAIN,
                    f"the account has {currency.coins(found.coins_wei)} for gas: "
                    + currency.send(self._account, wei=needed - found.coins_wei),
                )


async def finish_when_due(
    flow: WithdrawalFlow,
    record: WithdrawalRecord,
    clock: Clock,
    told: Callable[[WithdrawalState], Awaitable[None]],
) -> WithdrawalState:
    """Advances a withdrawal until its money has arrived. `told` hears of each wait."""
    while True:
        state = await flow.advance(record)
        if state.paid is not None:
            return state
        await told(state)
        await clock.sleep(min(max(1.0, state.ready_at - clock.now() + 1), 60.0))


def _paid(receipt: Receipt) -> Amount:
    kinds = artifact("Escrow").events
    for log in receipt.logs:
        kind = kinds.get(log.topics[0]) if log.topics else None
        if kind is not None and kind.name == "Withdrawn":
            return Amount(int(kind.parameters_of(log.topics, log.data)["amount"]))
    raise AssertionError("a withdrawal logs what it paid")
