"""Puts the operator's view together, and publishes it as metrics."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quorate_coordinator.base.operator_view import (
    ENDINGS,
    EndingsView,
    MoneyView,
    OperatorView,
    OrdersView,
    ProvidersView,
)
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    Matching,
    Rented,
    Revealing,
    Running,
)
from quorate_coordinator.core.model.state import State
from quorate_coordinator.status.ending_counts import EndingCounts
from quorate_coordinator.status.own_account import OwnAccount
from quorate_coordinator.storage.second_place import SecondPlace
from quorate_protocol.limits import USD
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Address, Amount, UnixSeconds, usd
from quorate_runtime.process.health import Problem
from quorate_runtime.version import version_number


def providers_of(state: State, connected: Collection[Address], now: UnixSeconds) -> ProvidersView:
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
    jobs = [state.jobs[job_id] for job_id in state.live]
    waiting = [job for job in jobs if isinstance(job.phase, Matching)]
    oldest = min((job.created_at for job in waiting), default=now)
    return OrdersView(
        matching=len(waiting),
        running=sum(isinstance(job.phase, Running) for job in jobs),
        awaiting_round=sum(isinstance(job.phase, AwaitingRound) for job in jobs),
        revealing=sum(isinstance(job.phase, Revealing) for job in jobs),
        rented=sum(isinstance(job.phase, Rented) for job in jobs),
        oldest_wait_seconds=max(0, now - oldest),
    )


def money_of(state: State) -> MoneyView:
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
    """A day's limit ends at midnight UTC."""
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


PROBLEMS = (
    "archive",
    "beacon",
    "chain",
    "clock",
    "disk",
    "documents",
    "outbox",
    "stopping",
    "tables",
)
PER_UNIT = {"usd": USD, "coins": 10**9}
"""How many of the view's units make one of a gauge's, by the last word of its name."""
Family = tuple[str, str, str, Mapping[str, float]]
"""A gauge: its name, what it shows, its label, and its figures by that label's values. A figure
without a label is under "".
"""


@dataclass(slots=True, eq=False)
class OperatorReport(Collector):
    """Everything that the operator may ask at one moment. Make it once the state is replayed."""

    state: State
    registry: CollectorRegistry
    own_account: OwnAccount
    connected: Callable[[], Collection[Address]]
    problems: Callable[[], tuple[Problem, ...]]
    clock: Clock
    second_place: SecondPlace
    endings: EndingCounts = field(init=False)
    started_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.endings = EndingCounts(self.state, self.clock, self.registry)
        self.started_at = int(self.clock.now())
        self.registry.register(self)

    def view(self) -> OperatorView:
        state, now = self.state, UnixSeconds(int(self.clock.now()))
        self.endings.refresh()
        counts, own, backup = self.endings.counts, self.own_account, self.second_place.view()
        endings = EndingsView(
            **{name: counts[name] for name in ENDINGS},
            matched_seconds_median=self.endings.seconds_median("matched"),
            decided_seconds_median=self.endings.seconds_median("decided"),
        )
        money = money_of(state)
        warnings = own.warning, backup.problem if backup else "", *money_warnings(money)
        return OperatorView(
            version=version_number(),
            started_at=self.started_at,
            block=state.own.block,
            chain_lag_seconds=max(0, now - state.own.block_time),
            problems=self.problems(),
            warnings=tuple(text for text in warnings if text),
            providers=providers_of(state, self.connected(), now),
            orders=orders_of(state, now),
            endings=endings,
            money=money,
            chain=own.figures,
            backup=backup,
        )

    def collect(self) -> Iterator[Metric]:
        """Labels come from closed sets."""
        view = self.view()
        for name, text, label, figures in (*_families(view), *_single_gauges(view)):
            per_unit = PER_UNIT.get(name.rpartition("_")[2], 1)
            family = GaugeMetricFamily(f"quorate_{name}", text, labels=[label] if label else [])
            for value, figure in figures.items():
                family.add_metric([value] if label else [], figure / per_unit)
            yield family


def _families(view: OperatorView) -> Iterator[Family]:
    providers, orders, money, chain = view.providers, view.orders, view.money, view.chain
    states = _named(providers, "registered", "connected", "on_offer")
    yield "providers", "Providers, by what they are.", "state", states
    slots = {"on_offer": providers.run_slots, "leased": providers.leases}
    yield "run_slots", "Run slots on offer, and leases in run slots.", "state", slots
    phases = _named(orders, "matching", "running", "awaiting_round", "revealing", "rented")
    yield "jobs", "Jobs under way, by phase.", "phase", phases
    credit = {"held": money.provider_held, "final": money.provider_final}
    yield "credit_usd", "Pay of all providers: in hold windows, and final.", "state", credit
    fees = {"held": money.fee_held, "final": money.fee_final}
    yield "fees_usd", "Own fees: in hold windows, and final.", "state", fees
    capital = _named(money, "balance", "locked")
    text = "Own capital: balance in Escrow, and locked as guarantees."
    yield "capital_usd", text, "state", capital
    left = {"payroll": money.payroll_left, "locks": money.locks_left}
    yield "limit_left_usd", "What the day's limits leave to the posting key.", "limit", left
    coins = {"posting": chain.posting_gwei, "account": chain.account_gwei}
    yield "key_coins", "Coins for gas.", "key", coins
    tokens = {"posting": chain.posting_amount, "account": chain.account_amount}
    yield "key_usd", "Tokens of the coordinator's keys.", "key", tokens
    failing = {problem.name for problem in view.problems}
    problems = {name: name in failing for name in PROBLEMS}
    yield "problem", "1 while the coordinator has this problem.", "name", problems


def _named(view: object, *names: str) -> dict[str, float]:
    return {name: getattr(view, name) for name in names}


def _single_gauges(view: OperatorView) -> Iterator[Family]:
    money, chain, backup = view.money, view.chain, view.backup
    days = inf if chain.days_left is None else chain.days_left
    waits = view.orders.oldest_wait_seconds
    found: list[tuple[str, str, float]] = [
        ("block", "Newest block that the coordinator has followed.", view.block),
        ("chain_lag_seconds", "Age of that block.", view.chain_lag_seconds),
        ("oldest_wait_seconds", "How long the oldest order waits for an offer.", waits),
        ("uncovered_usd", "Charged without a client's voucher yet.", money.uncovered),
        ("unpaid_usd", "Signed for providers and not paid yet.", money.unpaid),
        ("redeemable_usd", "Signed by clients and not redeemed yet.", money.redeemable),
        (
            "accusations_usd",
            "The posting key's balance in Escrow, which accusations burn.",
            chain.accusations,
        ),
        ("audit_fund_usd", "The audit fund.", money.fund),
        ("bond_usd", "The coordinator's bond on chain.", chain.bond),
        ("retired", "1 once the coordinator has retired.", chain.retired_at > 0),
        (
            "posting_key_days_left",
            "Days for which the posting key's coins last at the present use.",
            days,
        ),
        (
            "posting_key_spent_coins",
            "What its transactions cost in the last seven days.",
            chain.spent_gwei,
        ),
        ("own_account_checked_at", "When the chain last told of the keys.", chain.checked_at),
    ]
    if backup is not None:
        lag = inf if backup.lag_seconds is None else backup.lag_seconds
        behind = backup.events_behind
        found += [
            ("backup_lag_seconds", "Age of the newest whole copy in the second place.", lag),
            ("backup_events_behind", "Events that the second place lacks.", behind),
        ]
    for name, text, figure in found:
        yield name, text, "", {"": figure}
