"""Tests that the simulator notices rules that are broken on purpose, and shrinks a failing seed to
its cause.

`make sim ARGS=--mutants` tries every mutant. This file tries some of each kind.
"""

from functools import partial
from random import Random

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address
from quorate_protocol.values import replace
from sim import mutants
from sim.chain import OWN, Chain
from sim.parties import START, key
from sim.plan import CALM, Behaviour, draw
from sim.run import play_plan
from sim.schedule import Schedule
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
    seeds = (
        seed
        for seed in range(1, 1000)
        if len(draw(seed).cuts) > 1
        and draw(seed).weather != CALM
        and len(draw(seed).jobs) > 5
        and min(job.at for job in draw(seed).jobs) > 5
    )
    with mutants.applied("a credit counts twice"):
        played = ((seed, play_plan(draw(seed))[2]) for seed in seeds)
        seed, violation = next(pair for pair in played if pair[1] is not None)
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


CLIENTS = [key("client", number).address for number in range(2)]


def _chain(depth: int, seed: int = 1) -> Chain:
    limits = replace(DEVNET, chain_depth=depth)
    made = Chain(Schedule(START), Random(seed), limits)
    made.register({}, [], CLIENTS, 1_000, 0)
    return made


def _mine(chain: Chain, blocks: int) -> None:
    for _ in range(blocks):
        chain.schedule.run(1)
        chain.mine()


def _told(chain: Chain) -> list[Address]:
    batch = chain.notes_after(1)
    notes = batch.notes if batch is not None else ()
    return [note.payer for note in notes if isinstance(note, ev.ChainTabChanged)]


def _give_back(chain: Chain, client: Address, amount: int) -> None:
    def give() -> None:
        chain.escrow.give_back(OWN, client, OWN, amount, chain.now)

    chain.client_acts(client, give)


def test_programs_read_only_blocks_that_nothing_can_replace() -> None:
    chain = _chain(depth=4)
    _mine(chain, 4)
    _give_back(chain, CLIENTS[0], 10)
    _mine(chain, 3)
    assert _told(chain) == []
    _mine(chain, 1)
    assert _told(chain) == [CLIENTS[0]]
    chain.reorganise(10)
    assert chain.replaced == 3
    assert _told(chain) == [CLIENTS[0]]


def test_replaced_transaction_comes_again_and_nothing_is_lost() -> None:
    for seed in range(20):
        chain = _chain(depth=4, seed=seed)
        _mine(chain, 4)
        for client in CLIENTS:
            _give_back(chain, client, 400)
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert sorted(_told(chain)) == sorted(CLIENTS)
        for client in CLIENTS:
            chain.client_acts(client, partial(_withdraw, chain, client))
        _mine(chain, 1)
        chain.reorganise(3)
        _mine(chain, 40)
        assert chain.escrow.tokens_out == 800
        assert [chain.escrow.tabs[client, OWN].locked for client in CLIENTS] == [600, 600]


def _withdraw(chain: Chain, client: Address) -> None:
    chain.escrow.withdraw_all(client)


def test_market_holds_while_blocks_are_replaced() -> None:
    seed = next(seed for seed in range(1, 100) if draw(seed).limits.chain_depth == 4)
    _, _, violation, coverage = play_plan(draw(seed))
    assert violation is None
    assert coverage.facts["replaced blocks"] > 0
