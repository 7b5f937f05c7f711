"""Sums of the state for the operator: providers, orders, money. Pure, and linear in its rows."""

from collections.abc import Collection

from quorate_coordinator.base.operator_view import MoneyView, OrdersView, ProvidersView
from quorate_coordinator.core.model.entities import AwaitingRound, Matching, Revealing, Running
from quorate_coordinator.core.model.state import State
from quorate_protocol.units import Address, Amount, UnixSeconds, usd


def providers_of(state: State, connected: Collection[Address], now: UnixSeconds) -> ProvidersView:
    """Returns counts of providers. `connected` are the peers that are connected now."""
    alive = [provider for provider in state.providers.values() if provider.is_alive(now)]
    slots = sum(slot.count for item in alive if item.offer for slot in item.offer.slots)
    return ProvidersView(
        registered=len(state.providers),
        connected=sum(peer in state.providers for peer in connected),
        on_offer=sum(1 for item in alive if item.offer and item.offer.slots),
        run_slots=slots,
        leases=sum(len(leases) for leases in state.leases_in_slots.values()),
    )


def orders_of(state: State, now: UnixSeconds) -> OrdersView:
    """Returns counts of the jobs under way."""
    jobs = [state.jobs[job_id] for job_id in state.live]
    waiting = [job for job in jobs if isinstance(job.phase, Matching)]
    oldest = min((job.created_at for job in waiting), default=now)
    return OrdersView(
        matching=len(waiting),
        running=sum(isinstance(job.phase, Running) for job in jobs),
        awaiting_round=sum(isinstance(job.phase, AwaitingRound) for job in jobs),
        revealing=sum(isinstance(job.phase, Revealing) for job in jobs),
        oldest_wait_seconds=max(0, now - oldest),
    )


def money_of(state: State) -> MoneyView:
    """Returns the coordinator's fees and capital, and what it owes."""
    own, payees, clients = state.own, list(state.payees.values()), list(state.clients.values())
    return MoneyView(
        fee_final=own.fee,
        fee_held=own.fee_held,
        fund=Amount(own.fund + own.fund_held),
        provider_final=Amount(sum(item.final for item in payees)),
        provider_held=Amount(sum(item.held for item in payees)),
        uncovered=Amount(sum(max(0, item.charged - item.vouched) for item in clients)),
        unpaid=Amount(sum(item.unpaid for item in payees)),
        redeemable=Amount(sum(max(0, item.vouched - item.tab.paid) for item in clients)),
        balance=own.balance,
        locked=Amount(sum(item.tab.free for item in payees)),
        payroll_left=own.payroll_left,
        locks_left=own.locks_left,
    )


def money_warnings(money: MoneyView) -> list[str]:
    """Returns what stops pay, and what the operator can do. A day's limit ends at midnight UTC."""
    told = []
    lacks = money.unpaid - money.balance - money.redeemable
    if lacks > 0:
        told.append(
            f"{usd(money.unpaid)} USD of signed pay is more than the balance and what clients "
            f"signed: quorate coordinator deposit {usd(Amount(lacks))}"
        )
    if money.unpaid > money.payroll_left:
        told.append(
            f"{usd(money.unpaid)} USD of signed pay is more than today's limit of the posting key "
            f"leaves ({usd(money.payroll_left)}): `quorate coordinator limit` says what to set"
        )
    return told
