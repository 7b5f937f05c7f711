"""Which answers of the jurors convict, acquit or void a case, and whom the case then pays.

Money is conserved after each case.
"""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, BOSS, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome
from quorate_contracts.bindings.events import CaseOpened
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import ZERO_HASH

ACCUSED = key("owner0").address
THREE = [key(f"client{i}") for i in range(3)]
PAY = DEVNET.jury_pay_min  # of a juror for each execution: 30 seconds at 2 USD cost less
FEE = DEVNET.jury_gas_fee


@pytest.mark.rule("5.71", "5.74")
def test_the_opening_event_has_all_that_a_juror_needs() -> None:
    world = peopled()
    trial = Trial(world, [world.execution(ACCUSED, client) for client in THREE])
    event = next(each for each in trial.open().events if isinstance(each, CaseOpened))
    orders = [each.shown.job.order.message for each in trial.evidence]
    assert event.spec_hashes == tuple(order.spec_hash for order in orders)
    assert event.input_roots == tuple(order.input_root for order in orders)
    assert event.assignment_hashes == tuple(each.assignment_hash for each in trial.evidence)
    assert event.commitments == tuple(
        each.shown.run.commit.message.commitment for each in trial.evidence
    )
    assert (event.max_durations, event.pays) == ((30, 30, 30), (PAY, PAY, PAY))
    assert (event.accused, event.accuser, event.host_class) == (ACCUSED, ACCUSER.address, CLASS)
    info = world.contracts.deployment.beacon_info()
    ahead = info.genesis_time + (event.round - 1) * info.period - world.evm.now
    assert 3 * info.period <= ahead < 4 * info.period


@pytest.mark.rule("5.72", "5.82")
def test_a_provider_that_the_jury_agrees_with_is_acquitted_and_the_bond_pays() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    bond = trial.now.bond
    decided = trial.judged([trial.own()] * 7)
    assert (decided.convicted, decided.outcome, decided.slashed) == (
        False,
        CaseOutcome.ACQUITTED,
        0,
    )
    assert decided.burned == bond - 7 * (2 * PAY + FEE)
    assert world.evm.ask(world.contracts.stakes.stake_of(ACCUSED)) == DEVNET.slot_stake
    assert world.evm.ask(world.contracts.court.credit_of(ACCUSER.address)) == 0
    call = world.contracts.cases.open_case([each.shown for each in trial.evidence])
    refused(world.evm, "named", ACCUSER.address, call)
    money(world)


@pytest.mark.rule("I5", "5.79", "5.83")
@pytest.mark.parametrize(("against", "convicted"), [(7, True), (5, True), (4, False), (0, False)])
def test_two_thirds_of_the_jurors_convict(against: int, convicted: bool) -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([TRUTH[:2]] * against + [trial.own()] * (7 - against))
    assert decided.convicted is convicted
    paid = [
        juror for juror in trial.jurors if world.evm.ask(world.contracts.court.credit_of(juror)) > 0
    ]
    majority = trial.jurors[:against] if against >= 4 else trial.jurors[against:]
    assert paid == list(majority), "only the largest agreeing group is paid"
    money(world)


@pytest.mark.rule("5.72", "5.79")
def test_one_right_execution_acquits_and_only_right_ones_cannot_be_named_again() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([(TRUTH[0], trial.own()[1])] * 7)
    assert decided.outcome == CaseOutcome.ACQUITTED
    wrong, right = trial.evidence
    fresh = world.execution(ACCUSED, THREE[2], b"another lie")
    cases = world.contracts.cases
    call = cases.open_case([fresh.shown, right.shown])
    refused(world.evm, "named", ACCUSER.address, call)
    again = Trial(world, [wrong, fresh])
    again.open()
    assert again.judged([TRUTH[:2]] * 7).convicted
    money(world)


@pytest.mark.rule("5.79", "5.83")
def test_scattered_answers_convict_nobody_and_pay_all_equally_small_groups() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    answers = [(TRUTH[0], TRUTH[1]), (TRUTH[1], TRUTH[0]), (TRUTH[2], TRUTH[0])]
    decided = trial.judged([answers[0]] * 3 + [answers[1]] * 3 + [answers[2]])
    assert decided.outcome == CaseOutcome.ACQUITTED
    paid = [world.evm.ask(world.contracts.court.credit_of(juror)) for juror in trial.jurors]
    assert paid == [2 * PAY + FEE] * 6 + [0]
    money(world)


def test_seven_different_answers_fit() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED, THREE)
    answers = [
        tuple(type(TRUTH[0])(bytes([10 * seat + i + 1]) * 32) for i in range(3))
        for seat in range(7)
    ]
    assert trial.judged(answers).outcome == CaseOutcome.ACQUITTED  # type: ignore[arg-type]
    paid = [world.evm.ask(world.contracts.court.credit_of(juror)) for juror in trial.jurors]
    assert paid == [3 * PAY + FEE] * 7
    money(world)


@pytest.mark.rule("5.68", "7.10")
def test_three_executions_of_one_client_make_a_case() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED, [THREE[0]] * 3)
    decided = trial.judged([TRUTH] * 7)
    assert decided.convicted and decided.slashed == 7 * (3 * PAY + FEE) + FEE
    money(world)


@pytest.mark.rule("3.25", "5.51", "5.84")
@pytest.mark.parametrize("voids", [4, 7])
def test_unavailable_inputs_void_the_case_and_return_the_bond_less_fees(voids: int) -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    bond = trial.now.bond
    before = world.balance(ACCUSER.address)
    decided = trial.judged([(TRUTH[0], ZERO_HASH)] * voids + [TRUTH[:2]] * (7 - voids))
    assert (decided.outcome, decided.slashed, decided.burned) == (CaseOutcome.VOID, 0, 0)
    world.evm.send(BOSS.address, world.contracts.court.withdraw(ACCUSER.address))
    assert world.balance(ACCUSER.address) == before + bond - voids * (FEE + PAY)
    again = Trial(world, trial.evidence)
    again.open()
    money(world)


@pytest.mark.rule("5.84")
def test_a_minority_of_voids_changes_nothing() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    assert trial.judged([(ZERO_HASH, ZERO_HASH)] * 2 + [TRUTH[:2]] * 5).convicted
    money(world)


@pytest.mark.rule("5.79")
def test_two_thirds_of_four_are_three() -> None:
    world = peopled(providers=5)
    trial = Trial.opened(world, ACCUSED)
    assert trial.judged([TRUTH[:2]] * 3 + [trial.own()]).convicted
    money(world)
