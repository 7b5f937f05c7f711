"""Who is drawn as a juror, and how many jurors a case needs."""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome

ACCUSED = key("owner0").address
THREE = [key(f"client{i}") for i in range(3)]


@pytest.mark.rule("5.73", "5.76")
def test_jurors_are_distinct_and_neither_accuser_nor_accused() -> None:
    world = peopled(providers=9)
    twin = world.provider(20)
    world.evm.send(twin, world.contracts.stakes.change_payout(key("payout3").address))
    world.evm.travel(1)
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    assert len(set(trial.jurors)) == 7 and ACCUSED not in trial.jurors
    assert not {twin, key("owner3").address} <= set(trial.jurors), "one payout address has one seat"


@pytest.mark.rule("I9", "5.76")
def test_the_accused_cannot_remove_a_juror_by_taking_its_payout_address() -> None:
    """Owners with equal payout addresses cannot both be jurors.

    An accused that knew the round could take another owner's payout address, and so remove that
    owner from its jury (I9).
    """
    world = peopled(providers=4)
    trial = Trial.opened(world, ACCUSED)
    world.prove(trial.now.round)
    world.evm.send(ACCUSED, world.contracts.stakes.change_payout(key("payout1").address))
    trial.draw()
    assert set(trial.jurors) == {key(f"owner{i}").address for i in range(1, 4)}


@pytest.mark.rule("5.73")
def test_all_other_owners_are_jurors_when_there_are_few() -> None:
    world = peopled(providers=5)
    for number in range(1, 5):
        world.evm.send(
            key(f"owner{number}").address, world.contracts.stakes.open_slots(CLASS, number)
        )
    world.evm.travel(1)
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([TRUTH[:2]] * 4)
    assert decided.convicted and set(trial.jurors) == {
        key(f"owner{i}").address for i in range(1, 5)
    }
    money(world)


@pytest.mark.rule("5.76")
def test_slots_opened_after_the_executions_do_not_judge_them() -> None:
    world = peopled(providers=4)
    evidence = [world.execution(ACCUSED, client, b"lie") for client in THREE[:2]]
    world.evm.travel(1)
    late = world.provider(30)
    trial = Trial(world, evidence)
    trial.open()
    trial.draw()
    assert len(trial.jurors) == 3 and late not in trial.jurors


def test_too_few_jurors_void_the_case_at_the_draw() -> None:
    world = peopled(providers=3)
    trial = Trial.opened(world, ACCUSED)
    bond = trial.now.bond
    trial.draw()
    assert trial.now.outcome == CaseOutcome.VOID
    assert world.evm.ask(world.contracts.court.credit_of(ACCUSER.address)) == bond
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
    money(world)


@pytest.mark.rule("5.73")
def test_no_case_opens_with_fewer_owners_than_the_minimum() -> None:
    world = peopled(providers=2)
    shown = [world.execution(ACCUSED, client).shown for client in THREE[:2]]
    refused(world.evm, "owners", ACCUSER.address, world.contracts.court.open_case(shown))
