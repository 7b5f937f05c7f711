"""The crash matrix: kill -9 at every named point of coordinator, provider and client in a real
market. I1 to I7 must hold afterwards.

CI tries a part that changes with the commit (`QUORATE_CRASH_ROTATION=<n>` selects another one);
`make crash` tries all of it. Several programs die in one round, each at its own point. Every round
ends with a check of all ledgers and folders.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from quorate import Market
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_devnet.market.config import ExecutorChoice
from quorate_runtime.chain import ChainClient, Rpc
from support.crash import crash_court
from support.crash.crash_chain import node_that_can_go
from support.crash.crash_checks import Checks
from support.crash.crash_market import CrashMarket, crash_market
from support.crash.crash_plan import (
    CONTAINER_STEPS,
    OTHER_MARKETS,
    Scenario,
    part,
    rotation,
    wanted,
    wants_all,
)
from support.crash.crash_report import TRIES, Report, executor_without_engine, ordinary_executor
from support.crash.crash_rounds import RoundPlan, plan_rounds, play, rounds_of_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROVIDERS = 4
CI_SECONDS = 15.0  # after the market is up; a round that has begun is finished
CI_OTHER_SECONDS = 10.0  # the same for the market whose turn it is
CI_PATIENCE = 10  # times as long at most, until every program has died once
AWAY_SECONDS = 600.0 if wants_all() else 12.0
ORDERING_AWAY_SECONDS = (
    0.8 * AWAY_SECONDS
)  # no order is taken once the newest block is ten minutes old (PROTOCOL §3 Ack)
HANGING_SECONDS = 75.0
BACK_SECONDS = 90.0
# providers per round: with two others alive, no job waits until a lost execution lapses
CI_DYING = 2
CI_JUDGED = 6  # deaths of one case
NOT_SANDBOXED = ("mount.", "unmount.")  # plain processes have no mounts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crash(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CrashMarket]:
    """A market with containers if an engine answers (CI requires one), else with sandboxes or plain
    processes.
    """
    async with crash_market(
        tmp_path_factory.mktemp("crash"), ordinary_executor(), PROVIDERS
    ) as made:
        yield made


async def run_rounds(
    crash: CrashMarket, report: Report, rounds: list[RoundPlan], seconds: float
) -> None:
    """Runs rounds until all points are tried, or the time is over and every program has died
    once.
    """
    began = time.monotonic()
    async with Market(crash.devnet.profiles[1]) as other:
        checks = Checks(crash, (crash.market, other))
        while (
            rounds
            and (passed := time.monotonic() - began) < seconds * CI_PATIENCE
            and (passed < seconds or report.alive)
        ):
            plan, start = rounds.pop(0), time.monotonic()
            reached = await play(crash, checks, plan)
            again = [
                trial
                for trial in plan.trials
                if report.note(trial, trial in reached, time.monotonic() - start)
            ]
            problems = crash.violations + await checks.problems()
            report.violations += [f"{plan}: {problem}" for problem in problems]
            crash.violations.clear()
            report.jobs, report.unresolved = crash.jobs, len(checks.unresolved)
            missed = [trial.point for trial in plan.trials if trial not in reached]
            print(
                f"{time.monotonic() - start:5.1f} s {plan}{f' MISSED {missed}' * bool(missed)} "
                f"{problems or ''}",
                flush=True,
            )
            rounds[:0] = plan_rounds(tuple(again), crash.providers)
        assert crash.slots.looks, "no program was seen running"


@pytest.mark.rule("I6")
async def test_a_market_survives_kills_at_every_point(crash: CrashMarket) -> None:
    began = time.monotonic()
    all_trials = wanted(
        *(each for each in Scenario if each not in (*OTHER_MARKETS, Scenario.DEVNET))
    )
    report = Report(len(all_trials))
    if wants_all():
        await run_rounds(crash, report, plan_rounds(all_trials, crash.providers), 1e9)
    else:
        await run_rounds(
            crash,
            report,
            rounds_of_turn(all_trials, crash.providers[:CI_DYING], rotation()),
            CI_SECONDS,
        )
    report.tell("market", time.monotonic() - began)
    report.check()


# ------------------------------------------------------------------------ what needs another market


async def sandboxes(folder: Path, report: Report) -> None:
    """The same container steps in the other executors, and the small process that supervises their
    programs.
    """
    executor = executor_without_engine()
    steps = [trial for trial in wanted(Scenario.JOBS) if trial.point.startswith(CONTAINER_STEPS)]
    both = (*(replace(trial, scenario=Scenario.JOBS) for trial in wanted(Scenario.SANDBOX)), *steps)
    if executor is ExecutorChoice.PROCESS:
        both = tuple(trial for trial in both if not trial.point.startswith(NOT_SANDBOXED))
    report.points = len(both)
    async with crash_market(folder, executor, PROVIDERS) as crash:
        if wants_all():
            await run_rounds(crash, report, plan_rounds(both, crash.providers), 1e9)
        else:
            await run_rounds(
                crash,
                report,
                rounds_of_turn(both, crash.providers[:CI_DYING], rotation()),
                CI_OTHER_SECONDS,
            )


async def court(folder: Path, report: Report) -> None:
    """A liar is convicted once, loses its stake once, and every juror is paid once. Several
    markets' cases cover all points.
    """
    mine = wanted(Scenario.COURT)
    report.points, left = len(mine), mine if wants_all() else part(mine, CI_JUDGED, rotation())
    for attempt in range(TRIES if wants_all() else 1):
        start, market = (
            time.monotonic(),
            crash_market(
                folder / f"{attempt}",
                executor_without_engine(),
                crash_court.PROVIDERS,
                crash_court.LIARS,
            ),
        )
        async with market as crash, Market(crash.devnet.profiles[1]) as other:
            crash.others, checks = (other,), Checks(crash, (crash.market, other))
            reached = await crash_court.judge(crash, left)
            report.violations += crash.violations + await checks.problems()
            report.jobs += crash.jobs
        seconds = time.monotonic() - start
        left = tuple(trial for trial in left if report.note(trial, trial in reached, seconds))
        print(
            f"{seconds:5.1f} s court: {len(reached)} reached, MISSED "
            f"{[str(trial) for trial in left]} {report.violations or ''}",
            flush=True,
        )
        if not left:
            break


PLAYED = {Scenario.SANDBOX: sandboxes, Scenario.COURT: court}


async def _play_other(scenario: Scenario, folder: Path) -> None:
    began, report = time.monotonic(), Report(0)
    await PLAYED[scenario](folder, report)
    report.tell(scenario.value, time.monotonic() - began)
    report.check()


@pytest.mark.skipif(wants_all(), reason="all of them are played")
async def test_one_other_market_survives_kills_in_rotation(tmp_path: Path) -> None:
    await _play_other(OTHER_MARKETS[rotation() % len(OTHER_MARKETS)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", OTHER_MARKETS)
async def test_every_other_market_survives_kills_at_every_point(
    scenario: Scenario, tmp_path: Path
) -> None:
    if wanted(scenario):
        await _play_other(scenario, tmp_path)


# ----------------------------------------------------------------------------------- the chain node


async def test_jobs_continue_while_the_chain_node_is_away(crash: CrashMarket) -> None:
    """Connections are refused for ten minutes (seconds in CI), and coordinator and provider are
    killed. Jobs continue, and payments follow.
    """
    async with Market(crash.devnet.profiles[1]) as other, node_that_can_go(crash) as node:
        checks = Checks(crash, (crash.market, other))
        before = await paid(crash)
        await node.go_offline()
        gone = time.monotonic()
        try:
            await jobs_for(crash, ORDERING_AWAY_SECONDS / 2)
            await crash.renew(crash.providers[0], is_awaited=False)
            await crash.renew("coordinator")
            await jobs_for(crash, ORDERING_AWAY_SECONDS / 2)
            await asyncio.sleep(gone + AWAY_SECONDS - time.monotonic())
        finally:
            await node.return_online()
        async with asyncio.timeout(BACK_SECONDS):
            while await paid(crash) == before:
                await asyncio.sleep(0.5)
        assert not crash.violations + await checks.problems()
        assert crash.devnet.processes.ended() is None, "no program gave up"


async def jobs_for(crash: CrashMarket, seconds: float) -> None:
    """Runs jobs one after the other. At least one must finish, whatever was restarted just
    before.
    """
    began, before = time.monotonic(), crash.results
    while (passed := time.monotonic() - began) < seconds or (
        crash.results == before and passed < seconds + BACK_SECONDS
    ):
        await crash.feed([], 1)
    assert crash.results > before, "no job has ended without the chain"


async def paid(crash: CrashMarket) -> int:
    """Returns what payrolls have paid to the providers, in token units."""
    devnet = crash.devnet
    escrow = Contracts.of(devnet.deployment).escrow
    client = ChainClient(Rpc(devnet.chain_url, crash.session))
    queries = [escrow.tab(devnet.coordinator, each) for each in devnet.providers]
    return sum([(await ask(client, each)).paid for each in queries])


@pytest.mark.slow
async def test_jobs_continue_while_the_chain_node_hangs(crash: CrashMarket) -> None:
    """Its connections stay open, and nothing comes: above a transaction's 60 s, the outbox's 30
    s and every request's own time.
    """
    chain = crash.devnet.processes.children["chain"].process
    async with Market(crash.devnet.profiles[1]) as other:
        checks = Checks(crash, (crash.market, other))
        before = await paid(crash)
        chain.send_signal(signal.SIGSTOP)
        try:
            await jobs_for(crash, HANGING_SECONDS)
        finally:
            chain.send_signal(signal.SIGCONT)
        async with asyncio.timeout(BACK_SECONDS):
            while await paid(crash) == before:
                await asyncio.sleep(0.5)
        assert not crash.violations + await checks.problems()
        assert crash.devnet.processes.ended() is None, "no program gave up"
