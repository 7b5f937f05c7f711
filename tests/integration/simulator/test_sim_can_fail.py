"""Tests that the simulator notices rules that are broken on purpose, and shrinks a failing seed to
its cause.

`make sim ARGS=--mutants` tries every mutant. This file tries some of each kind.
"""

import pytest

from sim import mutants
from sim.plan import CALM, Behaviour, draw
from sim.run import play_plan
from sim.shrink import kind_of, shrink

MUTANTS_MIN = 25
QUICK = (
    "one result is a quorum",
    "a copied commitment opens",
    "auditors are drawn by a known round",
    "blinds can be guessed",
    "a credit counts twice",
    "pay is rounded up",
    "the output is shown before the verdict",
    "a provider reveals before the CommitSet",
)


def test_mutants_are_many_and_have_unique_names() -> None:
    names = [mutant.name for mutant in mutants.everyone()]
    assert len(names) == len(set(names)) >= MUTANTS_MIN
    assert set(QUICK) <= set(names)


@pytest.mark.parametrize("name", QUICK)
def test_mutant_is_killed(name: str) -> None:
    row = mutants.attempt(name)
    assert row.seed is not None, f"nobody noticed within {row.tries} plans"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [mutant.name for mutant in mutants.everyone() if mutant.name not in QUICK]
)
def test_every_mutant_is_killed(name: str) -> None:
    test_mutant_is_killed(name)


def test_failing_seed_shrinks_to_its_cause() -> None:
    """A double credit needs one job and nothing else, so shrinking removes all other parts of
    the seed's plan. Every job of that plan comes after the first offers, because a client whose job
    fits no offer does not ask again.
    """
    seed = next(
        seed
        for seed in range(1, 1000)
        if len(draw(seed).cuts) > 1
        and draw(seed).weather != CALM
        and len(draw(seed).jobs) > 5
        and min(job.at for job in draw(seed).jobs) > 5
    )
    with mutants.applied("a credit counts twice"):
        violation = play_plan(draw(seed))[2]
        assert violation is not None
        found = shrink(draw(seed), violation, lambda plan: play_plan(plan)[2])
    assert kind_of(found.violation) == kind_of(violation)
    plan = found.plan
    assert len(plan.jobs) == 1 and plan.weather == CALM
    assert not (
        plan.cuts
        or plan.clocks
        or plan.crash_chance
        or plan.has_intruder
        or plan.unbacked_chance
        or plan.outage
    )
    assert set(plan.behaviours) == {Behaviour.HONEST}
    assert play_plan(plan)[2] is None, "without the mutant the smallest plan holds"
