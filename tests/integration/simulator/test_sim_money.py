"""Tests the simulated market's money against thieves of the posting key and vanishing coordinators.

Every block's sums are checked while they play, so no token is made or lost.
"""

import dataclasses

import pytest

from sim.plan import Plan, draw
from sim.run import play_plan


def _plan(seed: int, **changes: object) -> Plan:
    return dataclasses.replace(draw(seed), **({"thefts": (), "vanishes": None} | changes))


@pytest.mark.rule("6.15", "I1")
def test_thieves_of_a_posting_key_are_paid_nothing() -> None:
    facts = {"a thief's epoch was revoked": 0, "a thief's epoch was void by a demand": 0}
    for seed in range(1, 7):
        _, _, violation, coverage = play_plan(_plan(seed, thefts=(25.0, 45.0)))
        assert violation is None
        for fact in facts:
            facts[fact] += coverage.facts[fact]
    assert all(facts.values()), facts


@pytest.mark.rule("6.28", "6.29", "I1")
def test_everybody_gets_what_is_theirs_after_a_coordinator_vanished() -> None:
    facts = {
        "a vanished coordinator was halted": 0,
        "a halted coordinator's bond paid Statements": 0,
    }
    for seed in (5, 6, 8):
        _, _, violation, coverage = play_plan(_plan(seed, vanishes=30.0))
        assert violation is None
        for fact in facts:
            facts[fact] += coverage.facts[fact]
    assert all(facts.values()), facts
