"""Who is drawn as a juror, and how many jurors a case needs."""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome
from quorate_protocol.limits import DEVNET

ACCUSED = key("owner0").address
THREE = [key(f"client{i}") for i in range(3)]


@pytest.mark.rule("5.73", "5.76")
def test_jurors_are_distinct_and_neither_accuser_nor_accused() -> None:
    world = peopled(providers=9)
    stakes, twin = world.contracts.stakes, world.provider(20)
    network = world.evm.ask(stakes.network_of(key("owner3").address))
    world.evm.send(twin, stakes.change_network(network))
    world.evm.travel(DEVNET.profile_delay)
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    assert len(set(trial.jurors)) == 7 and ACCUSED not in trial.jurors
    assert not {twin, key("owner3").address} <= set(trial.jurors), "one network has one seat"


@pytest.mark.rule("I9", "2.28")
def test_the_accused_cannot_remove_a_juror_by_taking_its_payout_address() -> None:
    world = peopled(providers=4)
    trial = Trial.opened(world, ACCUSED)
    world.prove(trial.now.round)
    call = world.contracts.stakes.change_payout(key("payout1").address)
    refused(world.evm, "payout", ACCUSED, call)
    trial.draw()
    assert set(trial.jurors) == {key(f"owner{i}").address for i in range(1, 4)}


@pytest.mark.rule("I9", "2.29")
@pytest.mark.parametrize("late", [0, 1])
def test_a_network_counts_in_a_draw_as_of_the_opening(late: int) -> None:
    """An owner that knows the round cannot take another's network to remove it from the jury. A
    change counts in cases that are opened once the delay has passed, and not a second before.
    """
    world = peopled(providers=4)
    stakes = world.contracts.stakes
    network = world.evm.ask(stakes.network_of(key("owner3").address))
    world.evm.send(key("owner1").address, stakes.change_network(network))
    world.evm.now += DEVNET.profile_delay - late
    trial = Trial.opened(world, ACCUSED)
    world.evm.travel(DEVNET.profile_delay)
    trial.draw()
    assert len(trial.jurors) == 2 + late


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
    world = peopled(providers=2)
    evidence = [world.execution(ACCUSED, client, b"lie") for client in THREE[:2]]
    world.evm.travel(1)
    for number in (30, 31):
        world.provider(number)
    trial = Trial(world, evidence)
    trial.open()
    bond = trial.now.bond
    trial.draw()
    assert trial.now.outcome == CaseOutcome.VOID
    assert world.evm.ask(world.contracts.court.credit_of(ACCUSER.address)) == bond
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
    money(world)


@pytest.mark.rule("5.73")
def test_no_case_opens_with_fewer_other_owners_than_the_minimum() -> None:
    world = peopled(providers=3)
    shown = [world.execution(ACCUSED, client).shown for client in THREE[:2]]
    refused(world.evm, "owners", ACCUSER.address, world.contracts.cases.open_case(shown))
