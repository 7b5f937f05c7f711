"""The last second, the last vote and the last block that a case still takes, and the first after
it.
"""

import pytest

from contracts.evm import only_py_evm, refused
from contracts.market import BOSS, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome, Phase
from quorate_protocol.units import ZERO_HASH, UnixSeconds

ACCUSED = key("owner0").address
CLIENTS = (key("client0"), key("client1"))


@pytest.mark.rule("5.79")
@pytest.mark.parametrize(("against", "convicted"), [(3, False), (4, True)])
def test_three_of_five_votes_are_no_two_thirds(against: int, convicted: bool) -> None:
    world = peopled(providers=6)
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([TRUTH[:2]] * against + [trial.own()] * (5 - against))
    assert decided.convicted is convicted
    money(world)


@pytest.mark.rule("5.84")
def test_half_of_the_votes_void_a_case() -> None:
    world = peopled(providers=5)
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([(ZERO_HASH, TRUTH[1])] * 2 + [TRUTH[:2]] * 2)
    assert decided.outcome == CaseOutcome.VOID
    money(world)


@pytest.mark.rule("5.77", "5.78")
def test_votes_and_reveals_count_in_their_last_second() -> None:
    world = peopled(providers=5)
    court, evm = world.contracts.court, world.evm
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    evm.now = trial.now.deadline
    trial.vote([TRUTH[:2]] * 3, trial.jurors[:3])
    refused(evm, "early", BOSS.address, court.advance(trial.case))
    evm.travel(1)
    last = [trial.signed_vote(trial.jurors[3], TRUTH[:2])]
    refused(evm, "phase", BOSS.address, court.vote(trial.case, last))
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 4)
    evm.now = trial.now.deadline
    refused(evm, "phase", BOSS.address, court.decide(trial.case, trial.reveals()))
    trial.reveal([TRUTH[:2]] * 3, trial.jurors[:3])
    assert trial.now.phase == Phase.REVEALING
    refused(evm, "phase", BOSS.address, court.decide(trial.case, trial.reveals()))
    evm.travel(1)
    assert trial.decide().convicted


@pytest.mark.rule("5.76")
def test_a_slot_opened_in_the_second_of_the_execution_judges_it() -> None:
    world = peopled(providers=4)
    now = UnixSeconds(world.evm.now)
    evidence = [world.execution(ACCUSED, each, b"lie", accept_by=now) for each in CLIENTS]
    just = world.provider(30)
    world.evm.travel(1)
    late = world.provider(31)
    trial = Trial(world, evidence)
    trial.open()
    trial.draw()
    assert just in trial.jurors and late not in trial.jurors


@only_py_evm("two transactions in one block")
@pytest.mark.rule("5.81")
def test_no_slot_opens_in_the_block_of_a_slash() -> None:
    """It could not be told from those that the slash closed."""
    world = peopled()
    stakes, evm = world.contracts.stakes, world.evm
    assert Trial.opened(world, ACCUSED).judged([TRUTH[:2]] * 7).convicted
    evm.number -= 1  # the next transaction stands in the block of the slash
    refused(evm, "frozen", ACCUSED, stakes.open_slots(CLASS, 1))
    evm.number += 1
    evm.send(ACCUSED, stakes.open_slots(CLASS, 1))
