"""What each way of checking costs in executions, and how many wrong results it lets through.

One old market, not one born with newcomers alone: the honest owners have passed all audits that
count. One in 10,000 of their jobs is the last of its owner, and a newcomer takes the place. At 24
jobs a day an owner so stays for a bit more than a year. A share of the owners cheats, and begins as
newcomers: `always` returns a wrong result each time, `sleeping` begins after 200 jobs and then lies
once in ten, `colluding` does the same and all of them return the same wrong result. A convicted
cheater that always lied is gone; the others come back as newcomers. So that they are at all stages,
`warm_up` jobs of each owner run before anything is counted. Honest executions go wrong once in
10,000.

`eba_*` is the product's own rule: `audit_draw.rate_ppm`, `verdict.decide` and
`trust_record.after_audit` (PROTOCOL §5 Rate, Batches, Holding, Faults). `eba_no_stake` is
`eba_standard` for jobs that cost nobody stake, because their comparator is not `exact`. Beside it
stand `fixed_2` and `fixed_3` (so many executions of each job, of which at least two and a majority
must agree) and `boinc` (adaptive replication: `sched_send.cpp`, CV of 10).

`wrong` counts results that were wrong when they became final, and those held at the end.
`profit_per_lie` is what a cheater gained beside an honest owner, in pays of a job, for each lie
that was decided. A paid lie saves the cost of the run, 60 % of its pay. A lie that was found loses
the rest, and strikes and few audits passed lower its price (4.67). No stake is counted, so no fine
of a jury either, nor what a new stake costs.

`python tests/bench/audit.py` prints one JSON line.
"""

import argparse
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quorate_protocol.limits import EXECUTIONS_MAX, MAINNET, TRUST_PASSED_MAX
from quorate_protocol.rules import verdict
from quorate_protocol.rules.audit_draw import CheatingIncentive, rate_ppm
from quorate_protocol.rules.hold_window import window_jobs
from quorate_protocol.rules.reputation.rank import AUDIT_PPM, AUDITS_MAX, STRIKE_PPM
from quorate_protocol.rules.trust_record import Trust, after_audit
from quorate_protocol.units import PPM_ONE, Address, Amount, Hash32, Label, UnixSeconds, VerifyTier

PAY = Amount(100_000)
ERROR = 1e-4  # of an honest execution
SLEEPS_FOR, LIES = 200, 0.1
WARM_UP = 250  # jobs of each owner before anything is counted
STAYS = 10_000  # jobs of an honest owner
COST = 0.6  # of running a job, in its pay
CLIENTS = 50
HOUR = 3600
HOLD = 24  # jobs, at one an hour, until 24 h end the hold
FOLLOWING = 20  # held jobs of other clients that are executed again after a fault (5.57)
CHEATERS = ("always", "sleeping", "colluding")
RIGHT, TOGETHER = 0, 1  # results; other numbers are one owner's own


@dataclass(eq=False)
class Owner:
    """One owner, and what it may lose."""

    number: int
    kind: str  # of CHEATERS, or "honest"
    trust: Trust = field(default_factory=Trust)
    served: int = 0
    audits: int = 0  # passed, as `rank` counts
    valid_in_a_row: int = 0  # as BOINC counts
    faults: dict[int, int] = field(default_factory=dict)  # client -> the job's number
    held: deque[tuple[int, int, int]] = field(default_factory=deque)  # job, client, result

    def result(self, job: int, chance: Random) -> int:
        """What it returns for a job."""
        if self.kind == "honest":
            return RIGHT if chance.random() >= ERROR else 2 + self.number
        if self.kind == "always":
            return 2 + self.number
        if self.served < SLEEPS_FOR:
            return RIGHT
        if self.kind == "colluding":  # all of them choose the same jobs
            return TOGETHER if Random(job).random() < LIES else RIGHT
        return 2 + self.number if chance.random() < LIES else RIGHT

    def lost_price(self) -> float:
        """What its record costs it in a job, beside an owner that is known."""
        strikes = STRIKE_PPM * len(self.trust.strikes)
        return (strikes + AUDIT_PPM * max(0, AUDITS_MAX - self.audits)) / PPM_ONE

    def begin_again(self) -> None:
        """Pays new stake and is a newcomer; who always lied leaves its place to an honest one."""
        self.trust, self.faults, self.valid_in_a_row = Trust(), {}, 0
        self.served, self.audits = 0, 0
        self.kind = "honest" if self.kind == "always" else self.kind
        self.held.clear()


class Market:
    """Jobs one after the other, each with a random primary."""

    def __init__(self, owners: int, share: float, kind: str, seed: int) -> None:
        self.chance = Random(seed)
        cheaters = round(owners * share)
        self.owners = [Owner(i, kind if i < cheaters else "honest") for i in range(owners)]
        for owner in self.owners[cheaters:]:
            owner.trust = Trust(TRUST_PASSED_MAX)
            owner.valid_in_a_row = owner.audits = TRUST_PASSED_MAX
        self.job = 0
        self.count_from_here()

    def count_from_here(self) -> None:
        self.executions, self.wrong, self.unresolved, self.convicted = 0, 0, 0, 0
        self.lies, self.gain = 0, 0.0

    def primary(self) -> Owner:
        """Draws who runs the present job first."""
        owner = self.chance.choice(self.owners)
        if owner.kind == "honest" and self.chance.random() < 1 / STAYS:
            owner.begin_again()
        owner.served += 1
        if owner.kind != "honest":
            self.gain -= owner.lost_price()
        return owner

    def decide(self, owner: Owner, result: int, is_paid: bool) -> None:
        """Counts what a cheater gained by a result, which is decided now."""
        if owner.kind != "honest" and result != RIGHT:
            self.lies += 1
            self.gain += COST if is_paid else COST - 1

    def run(self, owner: Owner) -> int:
        """Runs the present job once."""
        self.executions += 1
        return owner.result(self.job, self.chance)

    def others(self, taken: list[Owner]) -> Owner:
        """Draws somebody who has not executed the job yet."""
        while (found := self.chance.choice(self.owners)) in taken:
            pass
        return found

    def finish(self, result: int) -> None:
        """A result is final."""
        self.wrong += result != RIGHT


Rule = Callable[[Market], None]


def fixed(market: Market, count: int) -> None:
    """So many executions, then one more until `count // 2 + 1`, at least two, agree."""
    needed, taken, results = max(2, count // 2 + 1), list[Owner](), Counter[int]()
    while not taken or max(results.values()) < needed:
        if len(taken) >= EXECUTIONS_MAX:
            market.unresolved += 1
            return
        for _ in range(count if not taken else 1):
            taken.append(market.others(taken))
            taken[-1].served += 1
            results[market.run(taken[-1])] += 1
    market.finish(results.most_common(1)[0][0])


def boinc(market: Market) -> None:
    """Adaptive replication: an owner with CV ≥ 10 is trusted with probability 1 − 1/CV."""
    primary = market.primary()
    taken, cv = [primary], primary.valid_in_a_row
    results = [market.run(primary)]
    if cv >= 10 and market.chance.random() > 1 / cv:
        market.finish(results[0])
        return
    while max(Counter(results).values()) < 2:
        if len(taken) >= EXECUTIONS_MAX:
            market.unresolved += 1
            return
        taken.append(market.others(taken))
        results.append(market.run(taken[-1]))
    accepted = Counter(results).most_common(1)[0][0]
    for owner, result in zip(taken, results, strict=True):
        owner.valid_in_a_row = owner.valid_in_a_row + 1 if result == accepted else 0
    market.finish(accepted)


class Escrowed:
    """The product's rule."""

    def __init__(self, tier: VerifyTier, stake: Amount = MAINNET.slot_stake) -> None:
        self.tier, self.stake, self.window = tier, stake, window_jobs(tier, MAINNET)

    def __call__(self, market: Market) -> None:
        primary = market.primary()
        client, result = market.job % CLIENTS, market.run(primary)
        if self._is_drawn(market, primary):
            self._check(market, primary, client, result)
        else:
            primary.held.append((market.job, client, result))
        while len(primary.held) > min(self.window, HOLD):
            self._end_hold(market, primary)

    def _is_drawn(self, market: Market, owner: Owner) -> bool:
        incentive = CheatingIncentive(PAY, self.stake, Amount(PAY * len(owner.held)))
        rate = rate_ppm(Label.ADAPTIVE, self.tier, owner.trust, incentive)
        return market.chance.randrange(PPM_ONE) < rate

    def _end_hold(self, market: Market, owner: Owner) -> None:
        job, client, result = owner.held.popleft()
        if self._is_drawn(market, owner):
            self._check(market, owner, client, result, job)
        else:
            market.finish(result)
            market.decide(owner, result, is_paid=True)

    def _check(
        self, market: Market, primary: Owner, client: int, first: int, job: int | None = None
    ) -> None:
        """Executes a job again until a group suffices, and confirms what differs."""
        now, present = UnixSeconds(market.job * HOUR // len(market.owners)), market.job
        market.job = present if job is None else job
        taken, results, wanted = [primary], [first], 1
        while True:
            for _ in range(wanted):
                taken.append(market.others(taken))
                results.append(market.run(taken[-1]))
            decided = verdict.decide(
                Label.ADAPTIVE,
                self.tier,
                [_execution(*each) for each in zip(taken, results, strict=True)],
                EXECUTIONS_MAX,
                False,
                is_audited=True,
            )
            if not isinstance(decided, verdict.More):
                break
            wanted = decided.count
        group = decided.group if isinstance(decided, verdict.Accepted) else ()
        for index, owner in enumerate(taken):
            market.decide(owner, results[index], index in group)
        if not isinstance(decided, verdict.Accepted):
            market.unresolved += 1
        else:
            market.finish(results[decided.group[0]])
            if decided.faulted:
                market.executions += 2  # two members repeat the job (5.114)
            for index in decided.group:
                taken[index].trust = after_audit(taken[index].trust, True, now)
                taken[index].audits += 1
            for index in decided.faulted:
                self._fault(market, taken[index], client, now)
        market.job = present

    def _fault(self, market: Market, owner: Owner, client: int, now: UnixSeconds) -> None:
        if client not in owner.faults:
            owner.trust = after_audit(owner.trust, False, now)
            owner.faults[client] = market.job
        same = [each for each in owner.held if each[1] == client]
        rest = [each for each in owner.held if each[1] != client]
        is_accused = len(owner.faults) >= 2
        again = [*same, *(rest if is_accused else rest[:FOLLOWING])]
        for each in again:
            if each in owner.held:
                owner.held.remove(each)
                self._check(market, owner, each[1], each[2], each[0])
        if is_accused:  # by faults of two clients (5.157); honest errors repeat right (5.114)
            market.convicted += 1
            owner.begin_again()


def _execution(owner: Owner, result: int) -> verdict.Execution:
    return verdict.Execution(
        assignment_hash=Hash32(owner.number.to_bytes(32, "big")),
        provider=Address(owner.number.to_bytes(20, "big")),
        result=Hash32(result.to_bytes(32, "big")),
        suspicion_ppm=owner.trust.suspicion_ppm(),
    )


RULES: dict[str, Callable[[], Rule]] = {
    "eba_standard": lambda: Escrowed(VerifyTier.STANDARD),
    "eba_no_stake": lambda: Escrowed(VerifyTier.STANDARD, Amount(0)),
    "eba_lean": lambda: Escrowed(VerifyTier.LEAN),
    "eba_strict": lambda: Escrowed(VerifyTier.STRICT),
    "fixed_2": lambda: lambda market: fixed(market, 2),
    "fixed_3": lambda: lambda market: fixed(market, 3),
    "boinc": lambda: boinc,
}


def play(rule: str, share: float, kind: str, jobs: int, owners: int) -> dict[str, float]:
    """Runs one market; rates are of a job."""
    is_new = kind == "always"  # when the count begins; who always lies is gone soon
    market, one = Market(owners, share, "honest" if is_new else kind, seed=26), RULES[rule]()
    warm_up = (4 * HOLD if is_new else WARM_UP) * owners  # 4: the held pay settles
    for number in range(warm_up + jobs):
        market.job = number
        if number == warm_up:
            market.count_from_here()
            for owner in market.owners[: round(owners * share)] if is_new else ():
                owner.begin_again()
                owner.kind = kind
        one(market)
    pending = sum(result != RIGHT for owner in market.owners for _, _, result in owner.held)
    found = {
        "wrong": (market.wrong + pending) / jobs,
        "executions": round(market.executions / jobs, 3),
        "unresolved": market.unresolved / jobs,
        "convicted": market.convicted,
    }
    profit = {"profit_per_lie": round(market.gain / market.lies, 2)} if market.lies else {}
    return found | profit


def main() -> None:
    parser = argparse.ArgumentParser(prog="audit.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same: one JSON line")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--owners", type=int, default=1_000)
    options, began = parser.parse_args(), time.monotonic()
    found: dict[str, object] = {"jobs": options.jobs, "owners": options.owners}
    found |= {"warm_up": WARM_UP, "market": "old, with newcomers", "cost": COST}
    for rule in RULES:
        rows = {}
        for share in (0.01, 0.05, 0.2):
            kinds = {
                kind: play(rule, share, kind, options.jobs, options.owners) for kind in CHEATERS
            }
            worst = {
                name: max(row[name] for row in kinds.values() if name in row)
                for name in ("wrong", "executions", "profit_per_lie")
                if any(name in row for row in kinds.values())
            }
            rows[f"{share:.0%}"] = worst | {"by_kind": kinds}
        found[rule] = rows
    print(json.dumps(found | {"seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
