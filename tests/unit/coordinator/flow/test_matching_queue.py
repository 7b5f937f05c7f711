"""Tests that the matching queue keeps the order and deadlines of a plain scan.

Whole simulated markets take the same course with either of them.
"""

import pytest

from quorate_coordinator.core import coordinator_core
from quorate_coordinator.core.jobs.job_queue import Ranking
from quorate_coordinator.core.matching import offers
from sim.run import play
from support.markets import matching_scan

SEEDS = (2, 8, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_market_takes_the_same_course_with_scans(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, course, violation, _ = play(seed)
    assert violation is None
    monkeypatch.setattr(coordinator_core, "JobQueue", matching_scan.ScanQueue)
    monkeypatch.setattr(offers, "choose", matching_scan.choose)
    assert play(seed)[1] == course


def test_a_ranking_drops_outdated_entries() -> None:
    ranking: Ranking[str, tuple[int, str]] = Ranking()
    for number in range(10_000):
        ranking.set(f"key {number % 10}", (number, ""))
    ranking.set("key 0", None)
    assert len(ranking) == 9 and len(ranking._heap) <= 2 * 10 + 65
    assert ranking.first() == ((9991, ""), "key 1")
    assert ranking.take_until(9993) == ["key 1", "key 2", "key 3"]
    ranking.set("key 1", (1, ""))
    assert ranking.first() == ((1, ""), "key 1")
