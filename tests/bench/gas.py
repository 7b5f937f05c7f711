"""Measures gas and calldata of tabs, payrolls, funded orders, cases and faults on py-evm.

    PYTHONPATH=tests python tests/bench/gas.py --json

Gas of a job counts vouchers, payrolls and draws of a steady market: all accounts were paid before.
A case is sent as daemons send it, each vote and each reveal by itself, and ends with a conviction.
Ends with 1 if a figure is above its goal.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.court_trial import CONVICTED, RIGHT, Trial
from contracts.court_world import CourtWorld, peopled_court
from contracts.executions import HOUR
from contracts.funded import FundedOrder
from contracts.test_faults import acks, two_commits
from contracts.world import (
    CLIENT_CLOSE,
    COORDINATOR_CLOSE,
    EVIDENCE_WINDOW,
    Sent,
    World,
    account,
    market,
    pair,
)
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

K, ROOT, ANY = "coordinator", bytes(range(1, 33)), "stranger"
POSTER = f"{K} posting"
SCENARIOS = {"1k": (1_000, 50, 10), "10k": (10_000, 200, 20)}  # jobs a day, owners, clients
WEEK, DRAW_CYCLES = 7, 24
GOALS = {
    "weekly_credited_1k": 260,
    "weekly_credited_10k": 60,
    "daily_credited_1k": 560,
    "daily_credited_10k": 170,
    "own_draws_every_24th_1k": 330,
    "own_draws_every_24th_10k": 90,
    "order_escrow_total": 450_000,
    "jury7_as_sent": 1_000_000,
}
JURY_OWNERS = 24
STEPS = ("open", "draw", "vote", "reveal", "decide")
Figures = dict[str, dict[str, float]]


@dataclass
class Season:
    """A market in which clients pay vouchers each day and owners are paid by payroll."""

    owners: list[str]
    clients: list[str]
    world: World = field(default_factory=market)
    due: int = 0  # to each owner and of each client so far

    def open(self) -> "Season":
        world = self.world
        world.fund(K, 10**6 * USD)
        world.send(K, world.escrow, "deposit", 10**5 * USD, ZERO_ADDRESS)
        world.send(K, world.escrow, "set_limits", 10**5 * USD, 10**5 * USD)
        for client in self.clients:
            world.fund(client, 1000 * USD)
            world.send(client, world.escrow, "deposit", 500 * USD, account(K))
            call = (account(K), ZERO_HASH, [world.session(client, expires=2**36 - 1)], [])
            world.send(ANY, world.escrow, "redeem", *call)
        for owner in self.owners:
            world.provider(owner, slots=0)
        self.day()
        self.payroll()
        self.draws()
        return self

    def day(self) -> Sent:
        """Every client's voucher is redeemed."""
        self.due += 1_234_567
        vouchers = [self.world.voucher(client, K, self.due) for client in self.clients]
        call = (account(K), ROOT, [], vouchers)
        return self.world.send(POSTER, self.world.escrow, "redeem", *call)

    def payroll(self) -> Sent:
        """Every owner is paid."""
        self.due += 1_234_567
        pays = [pair(owner, self.due) for owner in self.owners]
        return self.world.send(POSTER, self.world.escrow, "payroll", account(K), ROOT, pays)

    def draws(self) -> list[Sent]:
        """Every owner lets its own credit be sent."""
        escrow, payers = self.world.escrow, [account(K)]
        return [
            self.world.send(owner, escrow, "draw", account(owner), payers) for owner in self.owners
        ]


def told(gas: float, sent: int) -> dict[str, float]:
    return {"gas": round(gas, 1), "calldata": sent}


def seasons(scenarios: Mapping[str, tuple[int, int, int]]) -> Figures:
    """Gas a job of each scenario, by how often owners are paid."""
    found: Figures = {}
    for name, (jobs, owners, clients) in scenarios.items():
        labels = [f"{name} owner{i}" for i in range(owners)]
        season = Season(labels, [f"{name} client{i}" for i in range(clients)]).open()
        season.world.evm.travel(86_400)
        day, payroll, draws = season.day(), season.payroll(), season.draws()
        drawn, data = sum(each.gas for each in draws), len(day.data)
        found[f"weekly_credited_{name}"] = told((day.gas + payroll.gas / WEEK) / jobs, data)
        paid = data + len(payroll.data)
        found[f"daily_credited_{name}"] = told((day.gas + payroll.gas) / jobs, paid)
        own = (day.gas + (payroll.gas + drawn) / DRAW_CYCLES) / jobs
        found[f"own_draws_every_24th_{name}"] = told(own, paid + len(draws[0].data))
    return found


def orders() -> Figures:
    """A funded order from its funding to its payment; both owners were paid before."""
    world = market()
    world.fund("client0", 100 * USD)
    world.send("client0", world.escrow, "deposit", 50 * USD, ZERO_ADDRESS)
    for owner in ("owner0", "owner1"):
        world.provider(owner)
    steps: list[Sent] = []
    for nonce in range(2):
        order = FundedOrder(world, nonce=nonce)
        fund = (order.job_id, 6 * USD, world.now + 20 * 86_400)
        steps = [world.send("client0", world.jobs, "fund", *fund)]
        world.evm.travel(HOUR)
        for owner in ("owner0", "owner1"):
            steps.append(world.send(ANY, world.jobs, "show", order.values, order.run(owner)))
        world.evm.travel(EVIDENCE_WINDOW + 1)
        listed = sorted(account(owner) for owner in ("owner0", "owner1"))
        steps.append(world.send(ANY, world.jobs, "pay", order.values, listed))
    names = ("order_fund", "order_show_first", "order_show", "order_pay")
    found = {name: told(each.gas, len(each.data)) for name, each in zip(names, steps, strict=True)}
    total = sum(each.gas for each in steps), sum(len(each.data) for each in steps)
    return found | {"order_escrow_total": told(*total)}


def singles() -> Figures:
    """Single calls: what a client or an owner alone pays."""
    season = Season(["owner0"], ["client0"]).open()
    world, place = season.world, (account(K), account("owner0"))
    world.fund("fresh", 100 * USD)
    found = {"client_deposit_first": world.send("fresh", world.escrow, "deposit", USD, place[0])}
    found["redeem_alone"], found["payroll_alone"] = season.day(), season.payroll()
    (found["draw_alone"],) = season.draws()
    found["guarantee_first"] = world.send(K, world.escrow, "lock", account("new"), USD)
    found["close"] = world.send("client0", world.escrow, "close", place[0])
    world.evm.travel(max(CLIENT_CLOSE, COORDINATOR_CLOSE) + 1)
    found["finish"] = world.send(ANY, world.escrow, "finish", account("client0"), place[0])
    found["withdraw"] = world.send("client0", world.escrow, "withdraw", USD)
    request = world.relayed("withdraw_for", "client0", USD, fee=1000)
    found["withdraw_relayed"] = world.send(ANY, world.escrow, "withdraw_for", *request)
    return {name: told(each.gas, len(each.data)) for name, each in found.items()}


def mean(sent: list[Sent]) -> dict[str, float]:
    """Gas and calldata of one transaction, as the mean of several."""
    size = sum(len(each.data) for each in sent)
    return told(sum(each.gas for each in sent) / len(sent), round(size / len(sent)))


def case(world: CourtWorld, accused: str) -> Trial:
    """A whole case that convicts."""
    trial = Trial(world, world.evidence(accused))
    trial.open()
    assert trial.judged().outcome == CONVICTED and len(trial.jury) == 7
    return trial


def whole(trial: Trial) -> dict[str, float]:
    """All transactions of a case but the proof of its round."""
    sent = [each for step in STEPS for each in trial.sent[step]]
    data = sum(len(each.data) for each in sent)
    return {"gas": sum(each.gas for each in sent), "calldata": data, "transactions": len(sent)}


def cases(world: CourtWorld) -> Figures:
    """A case of the steady market by step, at once, and with fresh balances."""
    first = Trial(world, world.evidence("owner2"))
    first.open()
    first.judged([RIGHT] * 3 + [keccak256(b"other")] * 4)
    fresh, batched = world.fork(), world.fork()
    trial = case(world, "owner0")
    found: Figures = {"jury7_as_sent": whole(trial)}
    for owner in fresh.owners.values():
        fresh.send(owner, fresh.escrow, "withdraw", fresh.balance(owner))
    found["jury7_as_sent_fresh"] = whole(case(fresh, "owner0"))
    together = Trial(batched, batched.evidence("owner0"))
    together.open()
    views = dict.fromkeys(together.draw(), RIGHT)
    together.vote(views, at_once=True)
    together.reveal(views, at_once=True)
    together.decide()
    found["jury7_at_once"] = whole(together)
    for step in STEPS:
        found[f"case_{step}"] = mean(trial.sent[step])
    found["beacon_submit"] = mean(trial.sent["beacon"])
    return found


def faults(world: CourtWorld) -> Figures:
    """Two Commits and two Acks, the first fault of each account."""
    pairs = {
        "equivocation": two_commits(world),
        "two_acks": acks(world, b"a", world.now, world.now),
    }
    return {
        kind: mean([world.send("accuser", world.faults, kind, *made)])
        for kind, made in pairs.items()
    }


def measured(scenarios: Mapping[str, tuple[int, int, int]] = SCENARIOS) -> Figures:
    """All figures."""
    court = peopled_court(DEVNET, JURY_OWNERS)
    return seasons(scenarios) | orders() | singles() | cases(court.fork()) | faults(court.fork())


def above(figures: Figures) -> list[str]:
    """Which figures are above their goals."""
    goals = {name: goal for name, goal in GOALS.items() if name in figures}
    return [
        f"{name}: {figures[name]['gas']} > {goal}"
        for name, goal in goals.items()
        if figures[name]["gas"] > goal
    ]


def main() -> int:
    """Prints the figures; 1 if one is above its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    figures = measured()
    wrong = above(figures)
    if options.json:
        print(json.dumps({"gas": figures, "goals": GOALS, "above": wrong}))
    else:
        for name, each in figures.items():
            print(f"{name:28} {each['gas']:>10,.0f} gas {each['calldata']:>7,} bytes")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
