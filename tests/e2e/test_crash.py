"""The crash matrix: kill -9 at every named point of coordinator, provider and client, in a real market; I1 to I7 hold afterwards.

CI tries a part of it that changes by the day (`QUORATE_CRASH_ROTATION=<n>` for another one), `make crash` all of it. Several
programs die in one round, each at a point of its own; every round ends with all books and folders looked at.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio

import crash_court
from crash_checks import Checks
from crash_devnet import Mortal
from crash_market import CrashMarket, crash_market
from crash_plan import UNREACHABLE, Scenario, Trial, part, rotation, trials, wants_all
from crash_rounds import RoundPlan, plan_rounds, play
from needs import missing, require, required
from quorate import Market
from quorate_devnet.config import ExecutorChoice

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROVIDERS = 4
CI_SECONDS = 35.0  # after the market is up; a round that has begun is finished
TRIES = 3  # rounds in which a point may be passed
AWAY_SECONDS = 75.0  # above a transaction's 60 s, the outbox's 30 s between tries, and every RPC's own time
BACK_SECONDS = 90.0
CI_DYING = 2  # providers a round: with two others alive, no job waits until a lost execution lapses
CI_DEVNETS = 1  # starts of a devnet that are killed
CONTAINER_STEPS = ("container.", "mount.", "unmount.", "output.")


@dataclass
class Report:
    """What the matrix has come to."""

    points: int
    tried: dict[str, float] = field(default_factory=dict)
    unreached: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    unresolved: int = 0

    def note(self, trial: Trial, is_reached: bool, seconds: float) -> bool:
        """True when it has to be tried again."""
        name = f"{trial.program}:{trial.point}"
        if is_reached:
            self.tried[name] = seconds
            self.unreached.pop(name, None)
            return False
        self.unreached[name] = self.unreached.get(name, 0) + 1
        return self.unreached[name] < TRIES

    def tell(self, what: str, seconds: float) -> None:
        """One JSON line."""
        line = {
            "matrix": what, "points": self.points, "tried": len(self.tried), "unreached": len(self.unreached),
            "violations": len(self.violations), "jobs": self.jobs, "unresolved": self.unresolved,
            "seconds": round(seconds, 1), "rotation": "all" if wants_all() else rotation(),
        }  # fmt: skip
        print("\n" + json.dumps(line))

    def check(self) -> None:
        """Fails with everything that was found."""
        assert not self.violations, "\n".join(self.violations)
        never = sorted(name for name, count in self.unreached.items() if count >= TRIES)
        assert not never, f"points that nothing passed in {TRIES} rounds: {never}"


def wanted(*scenarios: Scenario) -> tuple[Trial, ...]:
    """Trials of these scenarios."""
    return tuple(trial for trial in trials() if trial.scenario in scenarios)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crash(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CrashMarket]:
    """With containers where an engine answers (CI insists on one), else in sandboxes or plain processes."""
    if "docker" in required():
        require("docker")
    executor = ExecutorChoice.DOCKER if missing("docker") is None else ExecutorChoice.AUTO
    async with crash_market(tmp_path_factory.mktemp("crash"), executor, PROVIDERS) as made:
        yield made


async def run_rounds(crash: CrashMarket, report: Report, rounds: list[RoundPlan], seconds: float) -> None:
    """Plays until all are tried, or the time is over."""
    began = time.monotonic()
    async with Market(crash.devnet.profiles[1]) as other:
        checks = Checks(crash, (crash.market, other))
        while rounds and time.monotonic() - began < seconds:
            plan, start = rounds.pop(0), time.monotonic()
            reached = await play(crash, checks, plan)
            again = [trial for trial in plan.trials if report.note(trial, trial in reached, time.monotonic() - start)]
            problems = crash.violations + await checks.problems()
            report.violations += [f"{plan}: {problem}" for problem in problems]
            crash.violations.clear()
            report.jobs, report.unresolved = crash.jobs, len(checks.unresolved)
            missed = [trial.point for trial in plan.trials if trial not in reached]
            print(f"{time.monotonic() - start:5.1f} s {plan}{f' MISSED {missed}' * bool(missed)} {problems or ''}", flush=True)
            rounds[:0] = plan_rounds(tuple(again), crash.providers)


ELSEWHERE = (Scenario.CLAIM, Scenario.COURT, Scenario.SANDBOX, Scenario.DEVNET, Scenario.NEVER)
MARKET = tuple(each for each in Scenario if each not in ELSEWHERE)


async def test_a_market_that_is_killed_everywhere(crash: CrashMarket) -> None:
    began = time.monotonic()
    all_trials = tuple(trial for trial in wanted(*MARKET) if wants_all() or trial.scenario is not Scenario.LATE)
    report = Report(len(all_trials))
    if wants_all():
        rounds = plan_rounds(all_trials, crash.providers)
    else:
        rounds = plan_rounds(all_trials, crash.providers[:CI_DYING], 1)
        turn = rotation() % len(rounds)  # every round comes first one day
        rounds = (rounds + rounds)[turn : turn + len(rounds)]
    await run_rounds(crash, report, rounds, 1e9 if wants_all() else CI_SECONDS)
    report.tell("market", time.monotonic() - began)
    report.check()


@pytest.mark.slow
async def test_a_chain_node_that_is_away_longer_than_anybody_waits_for_it(crash: CrashMarket) -> None:
    """Jobs go on without it; what was to be posted and claimed is, once it is back. Ten minutes in scale: every bound is passed."""
    chain = crash.devnet.family.children["chain"].process
    async with Market(crash.devnet.profiles[1]) as other:
        checks = Checks(crash, (crash.market, other))
        before = await epochs(crash)
        chain.send_signal(signal.SIGSTOP)
        try:
            limit = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < limit:
                await crash.feed([], 1)
        finally:
            chain.send_signal(signal.SIGCONT)
        assert await epochs(crash) == before, "nothing can be posted without a chain"
        async with asyncio.timeout(BACK_SECONDS):
            while await epochs(crash) == before:
                await asyncio.sleep(0.5)
        assert not crash.violations + await checks.problems()
        assert crash.devnet.family.ended() is None, "nobody gave up"


async def epochs(crash: CrashMarket) -> int:
    """Number of the newest epoch that stands on chain."""
    async with crash.session.get(f"{crash.devnet.coordinator_url}/v1/epochs") as response:
        kept = json.loads(await response.read())["epochs"]
    return max((item["number"] for item in kept if item["isPosted"]), default=0)


@pytest.mark.slow
async def test_sandboxes_without_an_engine_that_are_killed_everywhere(tmp_path: Path) -> None:
    """The same container steps in the other executors, and the small process that keeps each of their programs."""
    steps = tuple(trial for trial in wanted(Scenario.JOBS) if trial.point.startswith(CONTAINER_STEPS))
    both = (*(replace(trial, scenario=Scenario.JOBS) for trial in wanted(Scenario.SANDBOX)), *steps)
    executor = ExecutorChoice.BWRAP if missing("bwrap") is None else ExecutorChoice.PROCESS
    if executor is ExecutorChoice.PROCESS:
        both = tuple(trial for trial in both if "mount" not in trial.point)
    began, report = time.monotonic(), Report(len(both))
    async with crash_market(tmp_path, executor, PROVIDERS) as crash:
        await run_rounds(crash, report, plan_rounds(both, crash.providers), 1e9)
    report.tell(executor.value, time.monotonic() - began)
    report.check()


@pytest.mark.slow
async def test_providers_that_claim_for_themselves_are_killed_everywhere(tmp_path: Path) -> None:
    """Where the coordinator claims for nobody; what is claimed is paid once."""
    all_trials, began = wanted(Scenario.CLAIM), time.monotonic()
    report = Report(len(all_trials))
    executor = ExecutorChoice.BWRAP if missing("bwrap") is None else ExecutorChoice.AUTO
    async with crash_market(tmp_path, executor, PROVIDERS, claims_for_all=False) as crash:
        await run_rounds(crash, report, plan_rounds(all_trials, crash.providers), 1e9)
        report.violations += await crash_court.sums_that_do_not_hold(crash)
    report.tell("claims", time.monotonic() - began)
    report.check()


@pytest.mark.slow
async def test_a_court_whose_jurors_and_accuser_are_killed_everywhere(tmp_path: Path) -> None:
    """A liar is convicted once, loses its stake once, and every juror is paid once. What one case does not pass, another market's does."""
    left, began = wanted(Scenario.COURT), time.monotonic()
    report = Report(len(left))
    executor = ExecutorChoice.BWRAP if missing("bwrap") is None else ExecutorChoice.AUTO
    for attempt in range(TRIES if left else 0):
        start, market = time.monotonic(), crash_market(tmp_path / f"market-{attempt}", executor, crash_court.PROVIDERS, crash_court.LIARS)
        async with market as crash, Market(crash.devnet.profiles[1]) as other:
            crash.others, checks = (other,), Checks(crash, (crash.market, other))
            reached = await crash_court.judge(crash, left)
            report.violations += crash.violations + await checks.problems()
        seconds = time.monotonic() - start
        left = tuple(trial for trial in left if report.note(trial, trial in reached, seconds))
        report.jobs += crash.jobs
        missed = [trial.point for trial in left]
        print(f"{seconds:5.1f} s court: {len(reached)} reached, MISSED {missed} {report.violations or ''}", flush=True)
        if not left:
            break
    report.tell("court", time.monotonic() - began)
    report.check()


async def test_a_devnet_that_is_killed_while_it_starts_and_ends(tmp_path: Path) -> None:
    began, all_trials = time.monotonic(), wanted(Scenario.DEVNET)
    report, mortal = Report(len(all_trials)), Mortal(tmp_path / "devnet")
    for trial in all_trials if wants_all() else part(all_trials, CI_DEVNETS, rotation()):
        start = time.monotonic()
        problem = await asyncio.to_thread(mortal.die_at, trial.point)
        report.note(trial, True, time.monotonic() - start)
        report.violations += [problem] if problem else []
    if wants_all():
        problem = await asyncio.to_thread(mortal.live)
        report.violations += [problem] if problem else []
    report.tell("devnet", time.monotonic() - began)
    report.check()


async def test_points_that_no_market_passes_are_few_and_named() -> None:
    never = wanted(Scenario.NEVER)
    assert {trial.point.rpartition(".")[2] for trial in never} == set(UNREACHABLE)
    assert len(never) <= 8
