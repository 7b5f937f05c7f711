"""Tests the simulator itself: one seed gives one trace for each Python hash seed, and a few
seeds hold every invariant.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sim import plan
from sim.mutants_money import crowded
from sim.run import play, play_plan

TESTS = Path(__file__).parents[2]


def _run(hash_seed: str, *arguments: str) -> dict[str, object]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "sim.run", *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("seconds")
    return found


def test_same_trace_under_two_hash_seeds() -> None:
    first = _run("1", "--seeds", "5", "--first", "10", "--workers", "1")
    assert first == _run("2", "--seeds", "5", "--first", "10", "--workers", "1")
    assert first["violations"] == 0


def test_workers_do_not_change_the_result() -> None:
    assert _run("0", "--seeds", "5", "--workers", "1") == _run(
        "0", "--seeds", "5", "--workers", "2"
    )


@pytest.mark.parametrize("market", list(plan.Market))
def test_every_kind_of_market_holds(market: plan.Market) -> None:
    seed = next(seed for seed in range(1, 1000) if plan.draw(seed).market is market)
    _, trace, violation, coverage = play(seed)
    assert violation is None
    assert coverage.edges["job:Revealing>Final"] + coverage.edges["job:Revealing>Decided"] > 0
    assert play(seed)[1] == trace, "the same seed gave another trace"


@pytest.mark.rule("5.111")
def test_held_pay_may_end_by_a_second_execution() -> None:
    """In a large market an unaudited result is provisional; at max_hold or after a fault it may
    be executed again (PROTOCOL §5).
    """
    plans = [found for found in map(crowded, map(plan.draw, range(100, 250))) if found is not None]
    found = [play_plan(item) for item in plans]
    assert all(violation is None for _, _, violation, _ in found)
    facts = sum((coverage.facts for _, _, _, coverage in found), Counter[str]())
    assert facts["held"] > 0
    assert sum(coverage.edges["job:Decided>AwaitingRound"] for _, _, _, coverage in found) > 0
    others = facts["held, kept"] + facts["held, gone"] + facts["held, confirmed"]
    assert facts["held, caught"] > 0 and others > 0, facts
