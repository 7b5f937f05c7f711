"""Takes a client's money out of the escrow: announce, wait, finish, and pass on (PROTOCOL §4).

The ledger records a withdrawal before its first transaction, and each transaction has a purpose
that is sent once. So the same command, repeated after a crash, goes on where it was. What vouchers
and open orders may still claim stays in the escrow.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from quorate.client.client_ledger import Ledger, WithdrawalRecord
from quorate.client.money.balances import Balances, CoordinatorBalance, Promises, read_balances
from quorate.client.money.chain_access import ChainAccess
from quorate.client.profile import Profile
from quorate.client.session import Notice
from quorate.errors import RefusedError, UsageError, translated
from quorate.job.quantities import format_amount
from quorate_contracts.artifact import artifact
from quorate_contracts.bindings.calls import Call
from quorate_protocol.messages.views import AccountView
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, UnixSeconds
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.sender import Outgoing, Sender
from quorate_runtime.chain.types import Receipt

DEADLINE_SECONDS = 300.0
EARLY = "early"  # the contracts' reason for a step before its time
GAS = 450_000  # of the five transactions together, with some reserve
CLOCK_SECONDS = 5  # our clock may be ahead of the next block's time by so much
TRIES = 5


@dataclass(frozen=True, slots=True)
class WithdrawalState:
    """What a withdrawal did, and what it waits for.

    `paid` is None until the money has reached the wallet. `ready_at` is when the next step can be
    taken, 0 if that depends on the coordinator: it posts `unposted` millionths of vouchers first.
    """

    record: WithdrawalRecord
    paid: Amount | None = None
    ready_at: UnixSeconds = UnixSeconds(0)
    unposted: Amount = Amount(0)


class WithdrawalFlow:
    """One run of `quorate withdraw` for one profile on one chain."""

    def __init__(
        self,
        chain: ChainAccess,
        profile: Profile,
        ledger: Ledger,
        clock: Clock,
        notice: Notice,
        seen: AccountView | None = None,
    ) -> None:
        """`seen` is what the coordinator says of the account, if it answers."""
        self._chain, self._ledger, self._clock = chain, ledger, clock
        self._account = profile.account.address
        self._seen, self._notice = seen, notice
        self._sender: Sender = chain.sender(profile.account, profile.home, clock)

    async def balances(self) -> Balances:
        """Returns the account's money now."""
        found = await read_balances(self._chain, self._account, self._ledger, self._clock.now())
        return found if self._seen is None else _with_seen(found, self._chain, self._seen)

    async def begin(self, amount: Amount | None, receiver: Address | None) -> WithdrawalRecord:
        """Returns the withdrawal that is under way, or records a new one.

        None means all that can be withdrawn; the receiver None means the wallet itself. Raises
        UsageError if another amount or receiver is under way, and RefusedError if there is less to
        withdraw, or too little coin for gas.
        """
        found = await self.balances()
        place = receiver or self._account
        under_way = self._ledger.open_withdrawal() or _announced_elsewhere(
            found, self._chain.identity.coordinator
        )
        if under_way is not None:
            return self._resumed(under_way, amount, place)
        ours = found.of(self._chain.identity.coordinator)
        largest = Amount(found.unallocated + ours.withdrawable)
        wanted = largest if amount is None else amount
        if not wanted or wanted > largest:
            raise RefusedError(
                Code.OVER_ALLOCATION.value,
                "The allocation does not cover it.",
                f"at most {format_amount(largest)} can be withdrawn now: "
                + _where_the_rest_is(found, ours),
                "`quorate balance` shows what is promised",
            )
        await self._check_gas(found)
        record = WithdrawalRecord(
            f"withdraw-{secrets.token_hex(6)}",
            wanted,
            Amount(max(0, wanted - found.unallocated)),
            place,
        )
        return self._ledger.begin_withdrawal(record)

    async def advance(self, record: WithdrawalRecord) -> WithdrawalState:
        """Takes every step that can be taken now. Repeating it does nothing twice.

        Raises UnavailableError if the chain does not answer, RefusedError with the contract's
        reason.
        """
        with translated():
            if not record.is_announced:
                await self._announce(record)
            found = await self.balances()
            ours = found.of(self._chain.identity.coordinator)
            if record.release and ours.allocation.release_at:
                waiting = await self._release(record, found, ours)
                if waiting is not None:
                    return waiting
                found = await self.balances()
            ready_at = found.withdrawal.ready_at
            if ready_at and not self._is_due(ready_at, found):
                return WithdrawalState(record, ready_at=ready_at)
            if not ready_at and not await self._sender.known(f"{record.id}/finish/0"):
                self._ledger.end_withdrawal(record)
                self._notice("another program of this account has finished this withdrawal")
                return WithdrawalState(record, paid=Amount(0))
            receipt = await self._finish(record, "finish", self._chain.escrow.finish_withdrawal())
            if receipt is None:
                return WithdrawalState(record, ready_at=UnixSeconds(found.block_time + 1))
            paid = _paid(receipt)
            if paid and record.receiver != self._account:
                move = self._chain.token.transfer(record.receiver, paid)
                await self._send(f"{record.id}/transfer", move)
            self._ledger.end_withdrawal(record)
            return WithdrawalState(record, paid=paid)

    def _resumed(
        self, under_way: WithdrawalRecord, amount: Amount | None, receiver: Address
    ) -> WithdrawalRecord:
        is_same = amount in (None, under_way.amount)
        is_same = is_same and receiver in (self._account, under_way.receiver)
        if not is_same:
            to = under_way.receiver.hex()
            raise UsageError(
                f"a withdrawal of {format_amount(under_way.amount)} to 0x{to} is under way; let "
                "`quorate withdraw` finish it, then withdraw again"
            )
        return self._ledger.begin_withdrawal(under_way)

    async def _announce(self, record: WithdrawalRecord) -> None:
        escrow, coordinator = self._chain.escrow, self._chain.identity.coordinator
        calls = [("announce", escrow.request_withdrawal(record.amount))]
        if record.release:
            calls.append(("release", escrow.request_release(coordinator, record.release)))
        await self._sender.send_in_order(
            [
                Outgoing(f"{record.id}/{name}", call.to, call.data, gas=call.gas)
                for name, call in calls
            ],
            deadline_seconds=DEADLINE_SECONDS,
        )

    async def _release(
        self, record: WithdrawalRecord, found: Balances, ours: CoordinatorBalance
    ) -> WithdrawalState | None:
        """Finishes the announced release. Returns what it waits for, or None when it is done."""
        allocation, coordinator = ours.allocation, self._chain.identity.coordinator
        kept = max(allocation.allocated - allocation.releasing, allocation.charged)
        if kept < ours.promises.vouched:
            return await self._release_less(record, ours)
        if not self._is_due(allocation.release_at, found):
            later = max(allocation.release_at, found.withdrawal.ready_at)
            return WithdrawalState(record, ready_at=UnixSeconds(later))
        call = self._chain.escrow.finish_release(coordinator)
        if await self._finish(record, f"finish-release/{allocation.release_at}", call) is None:
            return WithdrawalState(record, ready_at=UnixSeconds(found.block_time + 1))
        return None

    async def _release_less(
        self, record: WithdrawalRecord, ours: CoordinatorBalance
    ) -> WithdrawalState:
        """Vouchers were signed for what is announced: announces only what they leave."""
        if not ours.withdrawable:
            return WithdrawalState(record, unposted=ours.vouched)
        less = Amount(min(ours.allocation.releasing, ours.withdrawable))
        self._notice(
            f"vouchers need a part of the announced money, so only {format_amount(less)} is "
            "released; its waiting time starts again"
        )
        purpose = f"{record.id}/release-less/{ours.allocation.release_at}"
        await self._send(
            purpose, self._chain.escrow.request_release(self._chain.identity.coordinator, less)
        )
        found = await self.balances()
        allocation = found.of(self._chain.identity.coordinator).allocation
        return WithdrawalState(record, ready_at=allocation.release_at)

    def _is_due(self, ready_at: UnixSeconds, found: Balances) -> bool:
        """Whether the next block is late enough. A chain without transactions may make no blocks,
        so our own clock counts too, with some reserve.
        """
        return max(found.block_time, self._clock.now() - CLOCK_SECONDS) >= ready_at

    async def _finish(self, record: WithdrawalRecord, name: str, call: Call) -> Receipt | None:
        """Sends a finish. Returns None if the newest block was too early for it after all."""
        for number in range(TRIES):
            purpose = f"{record.id}/{name}/{number}"
            is_new = not await self._sender.known(purpose)
            try:
                return await self._send(purpose, call)
            except Refused as refused:
                if EARLY not in refused.detail:
                    raise
                if is_new:
                    return None  # not re-raised: the next try has another purpose
        raise Refused(Code.CHAIN, "the contract finds the withdrawal too early; check this clock")

    async def _send(self, purpose: str, call: Call) -> Receipt:
        return await self._sender.send(
            purpose, call.to, call.data, gas=call.gas, deadline_seconds=DEADLINE_SECONDS
        )

    async def _check_gas(self, found: Balances) -> None:
        client, currency = self._chain.client, self._chain.currency
        needed = GAS * first_bid(await client.fees(), client.fee_cap_wei).fee_max
        if found.coins_wei < needed:
            with translated():
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
        left = state.ready_at - clock.now() + 1
        await clock.sleep(min(max(1.0, left), 60.0) if state.ready_at else 60.0)


def _announced_elsewhere(found: Balances, coordinator: Address) -> WithdrawalRecord | None:
    """Returns a withdrawal that the chain knows and this profile's ledger does not."""
    pending = found.withdrawal
    if not pending.ready_at:
        return None
    releasing = found.of(coordinator).allocation.releasing
    return WithdrawalRecord(
        f"withdraw-{pending.ready_at}", pending.amount, releasing, found.account, True
    )


def _with_seen(found: Balances, chain: ChainAccess, seen: AccountView) -> Balances:
    """Adds the promises that the coordinator knows of: the ledger may have been restored."""

    def raised(item: CoordinatorBalance) -> CoordinatorBalance:
        if item.coordinator != chain.identity.coordinator:
            return item
        ours = item.promises
        most = max(ours.vouched + ours.orders, seen.vouched, seen.charged + seen.reserved)
        vouched = Amount(max(ours.vouched, seen.vouched))
        return replace(item, promises=Promises(vouched, Amount(most - vouched)))

    return replace(found, coordinators=tuple(raised(item) for item in found.coordinators))


def _where_the_rest_is(found: Balances, ours: CoordinatorBalance) -> str:
    return (
        f"of {format_amount(found.deposited)} deposited, {format_amount(ours.vouched)} is owed for "
        f"finished jobs and {format_amount(ours.promises.orders)} is promised to open orders"
    )


def _paid(receipt: Receipt) -> Amount:
    """Returns the amount of the log Withdrawn in the receipt of a finished withdrawal."""
    kinds = artifact("Escrow").events
    for log in receipt.logs:
        kind = kinds.get(log.topics[0]) if log.topics else None
        if kind is not None and kind.name == "Withdrawn":
            return Amount(int(kind.parameters_of(log.topics, log.data)["amount"]))
    raise AssertionError("a finished withdrawal logs what it paid")
