"""Tests that the crash matrix leaves no point out.

Each point has a market and an action that passes it. Over several commits each point is tried
first.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.crash.crash_devnet import LATER
from support.crash.crash_plan import (
    NOT_TRIED,
    OTHER_MARKETS,
    Scenario,
    Trial,
    part,
    rotation,
    trials,
    wanted,
)
from support.crash.crash_processes import processes
from support.crash.crash_rounds import BUSY, DEEDS, plan_rounds, rounds_of_turn
from support.crash.points import Program
from support.crash.program_points import points_of

MARKET = tuple(each for each in Scenario if each not in (*OTHER_MARKETS, Scenario.DEVNET))
WITHOUT_DEED = (
    *BUSY,
    *OTHER_MARKETS,
    Scenario.DEVNET,
    Scenario.FUND,
)  # ordinary jobs, or the program's start, pass these


def test_every_point_of_every_program_has_a_scenario_that_something_plays() -> None:
    assert {(trial.program, trial.point) for trial in trials()} == {
        (program, point)
        for program in Program
        for point in points_of(program)
        if point.rpartition(".")[2] not in NOT_TRIED
    }
    assert {trial.scenario for trial in trials()} <= {*DEEDS, *WITHOUT_DEED}
    assert Scenario.DECLINE in {trial.scenario for trial in trials()}
    assert set(LATER) <= {trial.point for trial in wanted(Scenario.DEVNET)}


def test_every_round_is_among_the_first_in_some_turn_and_all_programs_die_in_the_very_first() -> (
    None
):
    everything, soon = wanted(*MARKET), set[Trial]()
    for context in range(4000):
        first, second, *rest = rounds_of_turn(everything, ["provider-0", "provider-1"], context)
        assert {trial.program for trial in first.trials} == {
            Program.COORDINATOR,
            Program.PROVIDER,
            Program.CLIENT,
        }
        soon.update(first.trials, second.trials)
        assert len(rest) + 2 == len(plan_rounds(everything, ["provider-0", "provider-1"], 1)), (
            "no round is lost"
        )
    assert soon == set(everything)


@pytest.mark.parametrize("scenario", [*OTHER_MARKETS, Scenario.DEVNET])
def test_parts_of_other_markets_take_turns(scenario: Scenario) -> None:
    mine = wanted(scenario)
    assert (
        set().union(*(part(mine, 2, context) for context in range(len(mine)))) == set(mine) and mine
    )


def test_the_turn_follows_from_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORATE_CRASH_ROTATION", raising=False)
    rotation.cache_clear()
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        expected = int(done.stdout[:12], 16) if done.returncode == 0 else int(time.time() // 86_400)
        assert rotation() == expected
    finally:
        rotation.cache_clear()


def test_a_process_that_uses_a_folder_is_found(tmp_path: Path) -> None:
    """A process is found by its command line or by its working folder. This process never
    counts.
    """
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    for command, folder in (([*sleep, str(tmp_path / "x")], None), (sleep, tmp_path)):
        process = subprocess.Popen(command, cwd=folder)
        try:
            limit = time.monotonic() + 10
            while not (found := processes(tmp_path)) and time.monotonic() < limit:
                time.sleep(0.02)
            assert [line.partition(":")[0] for line in found] == [
                str(process.pid)
            ] and os.getpid() != process.pid
            assert processes(tmp_path, {process.pid}) == []
        finally:
            process.kill()
            process.wait()
    assert processes(tmp_path) == []
