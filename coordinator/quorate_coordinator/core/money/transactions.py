"""Transactions of money: which one is due, and what becomes of it (PROTOCOL 6.82 to 6.90).

At most one payroll, one redemption and one list of locks are under way. They are built from final
blocks and from what was signed, so one that is built again pays nothing twice.
"""

from collections import Counter
from collections.abc import Iterator

from quorate_coordinator.core.model.effects import (
    Effect,
    Lock,
    PaidVoucher,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
)
from quorate_coordinator.core.model.entities import Client, Sending
from quorate_coordinator.core.model.events import (
    ChainTabChanged,
    GiveBackAsked,
    TransactionConfirmed,
    TransactionRefused,
)
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger, payees
from quorate_protocol.limits import DAY
from quorate_protocol.messages.stake_slot import FOREVER
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import tabs
from quorate_protocol.rules.tabs import Held, Tab
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds
from quorate_protocol.values import replace

PAYROLL, REDEEM, LOCKS, GIVE_BACK = "payroll", "redeem", "locks", "give-back"
ENTRIES_MAX = 256  # of one payroll or list of locks, as `Escrow` takes them
VOUCHERS_MAX = 16  # of one redemption, because `Escrow` takes so many sessions


def send_due(context: StepContext) -> None:
    """Looks again as long as something is unpaid. Its cost is linear in accounts."""
    own = context.state.own
    if not own.money_at or context.at < own.money_at:
        return
    clients = list(context.state.clients.values())
    for client in clients:
        if client.tab.closes_at:
            ledger.return_overpaid(context, client.account)
    owed = _owed(context)
    _pay(context, owed)
    _redeem(context, owed)
    _lock(context)
    is_waiting = any(payee.unpaid for payee in context.state.payees.values()) or any(
        _is_redeemable(client) or (client.tab.closes_at and client.under_way) for client in clients
    )
    context.change_own(money_at=UnixSeconds(0), looked_at=context.at)
    if is_waiting:
        payees.wake(context)


def _is_free(context: StepContext, kind: str) -> bool:
    sending = context.state.sending.get(kind)
    return sending is None or 0 < sending.retry_at <= context.at


def _key(context: StepContext, kind: str) -> str:
    return f"{kind}-{context.count(kind)}-{context.at}"


def _send(
    context: StepContext, kind: str, effect: Effect, amount: Amount, accounts: tuple[Address, ...]
) -> None:
    context.state.sending[kind] = Sending(effect.key, amount, accounts)
    context.emit(effect)


# ------------------------------------------------------------------------------------------ payroll


def _owed(context: StepContext) -> dict[Address, tuple[Amount, Amount]]:
    limits = context.rules.limits
    return {
        payee.account: (payee.vouched, payee.tab.paid)
        for payee in context.state.payees.values()
        if tabs.is_pay_due(payee.unpaid, Seconds(context.at - payee.paid_at), limits)
    }


def is_payroll_due(context: StepContext) -> bool:
    """Whether the next look may pay somebody. Its cost is linear in accounts, as that look's."""
    own = context.state.own
    is_looking = 0 < own.money_at <= context.at
    return is_looking and _is_free(context, PAYROLL) and bool(_owed(context))


def _pay(context: StepContext, owed: dict[Address, tuple[Amount, Amount]]) -> None:
    own = context.state.own
    if not owed or not _is_free(context, PAYROLL):
        return
    available = Amount(min(_available(context), own.payroll_left))
    pays = tabs.payroll(owed, available, ENTRIES_MAX)
    if pays:
        amount = Amount(sum(pay.cumulative - owed[pay.payee][1] for pay in pays))
        effect = SendPayroll(_key(context, PAYROLL), pays, own.log.root())
        _send(context, PAYROLL, effect, amount, tuple(pay.payee for pay in pays))


def _available(context: StepContext) -> Amount:
    found = (context.state.sending.get(kind) for kind in (PAYROLL, LOCKS))
    under_way = sum(item.amount for item in found if item is not None and not item.retry_at)
    return Amount(max(0, context.state.own.balance - under_way))


# ------------------------------------------------------------------------------------------- redeem


def _is_redeemable(client: Client) -> bool:
    return (
        client.voucher is not None
        and client.vouched > client.tab.paid
        and client.charged > client.tab.paid
    )


def _redeem(context: StepContext, owed: dict[Address, tuple[Amount, Amount]]) -> None:
    if not _is_free(context, REDEEM):
        return
    needed = sum(vouched - paid for vouched, paid in owed.values())
    is_wanted = context.state.own.is_leaving or needed > _available(context)
    due = [
        client
        for client in context.state.clients.values()
        if _is_redeemable(client)
        and context.at >= client.redeem_after
        and (is_wanted or _is_redeem_due(context, client))
    ]
    before = context.state.sending.get(REDEEM)
    # The chain refused the last one: each voucher is now tried alone.
    most = 1 if before is not None and before.retry_at else VOUCHERS_MAX
    if not due:
        return
    due.sort(key=lambda client: (client.unpaid_since, client.account))
    vouchers = tuple(_paid_voucher(client) for client in due[:most])
    accounts = tuple(client.account for client in due[:most])
    effect = SendRedeem(_key(context, REDEEM), vouchers, context.state.own.log.root())
    _send(context, REDEEM, effect, Amount(0), accounts)


def _paid_voucher(client: Client) -> PaidVoucher:
    assert client.voucher is not None and client.voucher_session is not None
    return PaidVoucher(client.voucher, client.voucher_session)


def _is_redeem_due(context: StepContext, client: Client) -> bool:
    limits = context.rules.limits
    item = _paid_voucher(client)
    key_ends = item.session.message.expires
    held = Held(item.voucher.message.cumulative, client.unpaid_since, key_ends)
    least = tabs.PAY_LEAST if limits.redeem_every >= DAY else Amount(0)
    return tabs.is_redeem_due(client.tab, held, ledger.chain_time(context), least, limits)


# -------------------------------------------------------------------------------------------- locks


def _lock(context: StepContext) -> None:
    """The smallest first, so that most get one. What is signed and unpaid comes first."""
    state = context.state
    if not _is_free(context, LOCKS):
        return
    unpaid = sum(payee.unpaid for payee in state.payees.values())
    left = min(_available(context) - unpaid, _locks_left(context))
    locks: list[Lock] = []
    for amount, owner in sorted(_wanted(context)):
        if amount > left or len(locks) == ENTRIES_MAX:
            break
        left -= amount
        locks.append(Lock(owner, amount))
    if locks:
        total = Amount(sum(lock.amount for lock in locks))
        ordered = tuple(sorted(locks, key=lambda lock: lock.payee))
        effect = SendLocks(_key(context, LOCKS), ordered)
        _send(context, LOCKS, effect, total, tuple(lock.payee for lock in ordered))


def _wanted(context: StepContext) -> Iterator[tuple[Amount, Address]]:
    state, slot_stake = context.state, context.rules.limits.slot_stake
    slots = Counter(
        slot.owner
        for hosts in state.pool_slots.values()
        for slot in hosts.slots
        if slot.active_until == FOREVER
    )
    for owner, count in slots.items():
        provider = state.providers.get(owner)
        if provider is None or not provider.is_alive(context.at):
            continue
        payee = payees.of(state, owner)
        daily = payees.daily_pay(payee, context.at)
        wanted = tabs.guarantee(daily, Amount(count * slot_stake))
        amount = tabs.lock_due(payee.tab, payee.unpaid, wanted)
        if amount:
            yield amount, owner


def _locks_left(context: StepContext) -> int:
    items = context.state.sending.items()
    under_way = sum(
        item.amount for kind, item in items if kind not in (PAYROLL, REDEEM) and not item.retry_at
    )
    return max(0, context.state.own.locks_left - under_way)


# --------------------------------------------------------------------------------------- give-backs


def on_give_back(context: StepContext, event: GiveBackAsked) -> Amount:
    """Frees what is free in a client's tab, as far as it asks. A client that takes all gets back
    what it paid beyond its charges. It asks once in a `pay_every` for a part, because each time
    costs this coordinator gas.
    """
    client = context.state.clients.get(event.client)
    if client is None:
        raise Refused(Code.UNKNOWN, f"client 0x{event.client.hex()}")
    kind = ledger.give_back_kind(client.account)
    under_way = context.state.sending.get(kind)
    if under_way is not None:
        return under_way.amount
    free = free_of(context, client)
    if event.amount >= free:
        ledger.return_overpaid(context, client.account)
    elif context.at < client.gave_back_at + context.rules.limits.pay_every:
        raise Refused(Code.BUSY, "give-back: ask for all that is free, or once a day for a part")
    else:
        context.state.clients[client.account] = replace(client, gave_back_at=context.at)
    amount = Amount(min(event.amount, free, _locks_left(context)))
    if amount:
        key = f"{kind}-{context.count(GIVE_BACK)}-{context.at}"
        context.state.sending[kind] = Sending(key, amount, (client.account,))
        context.emit(SendGiveBack(key, client.account, amount))
    return amount


def free_of(context: StepContext, client: Client) -> Amount:
    needed = max(client.tab.paid, client.vouched, client.charged + client.reserved)
    return Amount(max(0, ledger.orderable(context.state, client) - needed))


# ------------------------------------------------------------------------------------------ results


def on_tab(context: StepContext, note: ChainTabChanged) -> None:
    tab = Tab(note.locked, note.paid, note.closes_at)
    if note.payee == context.rules.coordinator:
        ledger.on_tab(context, note.payer, tab)
    if note.payer == context.rules.coordinator:
        payees.on_tab(context, note.payee, tab)


def on_confirmed(context: StepContext, event: TransactionConfirmed) -> None:
    found = _under_way(context, event.purpose)
    if found is None:
        return
    kind, sending = found
    del context.state.sending[kind]
    for account in sending.accounts if kind == PAYROLL else ():
        payee = payees.of(context.state, account)
        context.state.payees[account] = replace(payee, paid_at=context.at)
    payees.wake(context)


def on_refused(context: StepContext, event: TransactionRefused) -> None:
    """Another one is built after a pause, in which the cause can become known."""
    found = _under_way(context, event.purpose)
    if found is None:
        return
    kind, sending = found
    if kind not in (PAYROLL, REDEEM, LOCKS):
        del context.state.sending[kind]
        return
    later = UnixSeconds(context.at + payees.pause(context))
    context.state.sending[kind] = replace(sending, retry_at=later)
    if kind == REDEEM and len(sending.accounts) == 1:
        client = context.state.clients.get(sending.accounts[0])
        if client is not None:
            again = UnixSeconds(context.at + context.rules.limits.pay_every)
            context.state.clients[client.account] = replace(client, redeem_after=again)
    payees.wake(context)


def _under_way(context: StepContext, purpose: str) -> tuple[str, Sending] | None:
    for kind, sending in context.state.sending.items():
        if sending.key == purpose and not sending.retry_at:
            return kind, sending
    return None
