"""Sums of the state for the operator: providers, orders, money. Pure, and linear in its rows."""

from collections.abc import Collection

from quorate_coordinator.core.entities import AwaitingRound, Matching, Revealing, Running
from quorate_coordinator.core.state import State
from quorate_coordinator.monitoring.operator_view import MoneyView, OrdersView, ProvidersView
from quorate_protocol.units import Address, Amount, UnixSeconds


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
    """Returns the coordinator's fees, and what it owes."""
    own, providers = state.own, list(state.providers.values())
    uncovered = sum(max(0, item.charged - item.vouched) for item in state.clients.values())
    return MoneyView(
        fee_final=own.fee,
        fee_held=own.fee_held,
        fund=Amount(own.fund + own.fund_held),
        provider_final=Amount(sum(item.final for item in providers)),
        provider_held=Amount(sum(item.held for item in providers)),
        uncovered=Amount(uncovered),
    )
