"""kill -9 of a devnet's parent at every named point of its start and end."""

import asyncio
import time
from pathlib import Path

from support.crash.crash_devnet import KilledDevnet
from support.crash.crash_plan import Scenario, part, rotation, wanted, wants_all
from support.crash.crash_report import Report, executor_without_engine, ordinary_executor

CI_DEVNETS = 1  # starts of a devnet that are killed


async def test_a_devnet_killed_during_start_or_end_leaves_nothing(tmp_path: Path) -> None:
    """Once with containers and once without. The next devnet in the folder must start and end
    cleanly.
    """
    began, all_trials = time.monotonic(), wanted(Scenario.DEVNET)
    report = Report(len(all_trials))
    executors = (ordinary_executor(), executor_without_engine())
    for executor in executors if wants_all() else executors[rotation() % 2 :][:1]:
        mortal = KilledDevnet(tmp_path / executor.value / "devnet", executor)
        for trial in all_trials if wants_all() else part(all_trials, CI_DEVNETS, rotation()):
            start = time.monotonic()
            problem = await asyncio.to_thread(mortal.die_at, trial.point)
            report.note(
                trial,
                not problem.startswith(f"{trial.point}: not passed"),
                time.monotonic() - start,
            )
            report.violations += [problem] if problem else []
        problem = await asyncio.to_thread(mortal.live)
        report.violations += [problem] if problem else []
        assert mortal.held, "no end found a job running"
    report.tell("devnet", time.monotonic() - began)
    report.check()
