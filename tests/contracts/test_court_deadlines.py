"""What happens to a case when votes, reveals, openings or the beacon do not come in time.

Money is conserved after each case.
"""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, BOSS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome, Phase
from quorate_contracts.bindings.events import Redraw, RevealsOpen
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import UnixSeconds

ACCUSED = key("owner0").address
PAY = DEVNET.jury_pay_min  # of a juror for each execution: 30 seconds at 2 USD cost less
FEE = DEVNET.jury_gas_fee


@pytest.mark.rule("5.75", "5.77", "5.78")
def test_jurors_that_do_not_vote_are_replaced_once_by_a_new_round() -> None:
    world = peopled(providers=12)
    court, evm = world.contracts.court, world.evm
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    first = trial.jurors
    trial.vote([TRUTH[:2]] * 5, first[:5])
    refused(evm, "early", BOSS.address, court.advance(trial.case))
    evm.travel(DEVNET.jury_window + 60)
    refused(evm, "early", BOSS.address, court.advance(trial.case))
    evm.travel(1)
    late = [trial.signed_vote(first[5], TRUTH[:2])]
    refused(evm, "phase", BOSS.address, court.vote(trial.case, late))
    old_round = trial.now.round
    event = evm.send(BOSS.address, court.advance(trial.case)).events[-1]
    assert event == Redraw(trial.case, trial.now.round) and trial.now.round > old_round
    refused(evm, "beacon", BOSS.address, court.draw_jury(trial.case))
    trial.draw()
    assert (
        trial.jurors[:5] == first[:5]
        and not set(trial.jurors[5:]) & set(first)
        and len(trial.jurors) == 7
    )
    refused(
        evm, "voted", BOSS.address, court.vote(trial.case, [trial.signed_vote(first[0], TRUTH[:2])])
    )
    trial.vote([TRUTH[:2]] * 1, trial.jurors[5:6])
    evm.travel(DEVNET.jury_window + 61)
    event = evm.send(BOSS.address, court.advance(trial.case)).events[-1]
    assert event == RevealsOpen(trial.case, UnixSeconds(evm.now + DEVNET.jury_window)), (
        "the second time those who voted go on"
    )
    trial.reveal([TRUTH[:2]] * 6, trial.jurors[:6])
    assert trial.decide().convicted
    assert evm.ask(court.credit_of(first[5])) == 0 == evm.ask(court.credit_of(trial.jurors[6]))
    money(world)


@pytest.mark.rule("5.77")
def test_if_no_owner_is_left_for_a_redraw_the_jurors_that_voted_continue() -> None:
    world = peopled(providers=5)
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    kept = trial.jurors[:3]
    trial.vote([TRUTH[:2]] * 3, kept)
    world.evm.travel(DEVNET.jury_window + 61)
    world.evm.send(BOSS.address, world.contracts.court.advance(trial.case))
    trial.draw()
    assert trial.jurors == kept and trial.now.phase == Phase.REVEALING
    trial.reveal([TRUTH[:2]] * 3, kept)
    assert trial.decide().convicted
    money(world)


def test_voters_of_a_jury_that_stays_too_small_get_their_gas() -> None:
    world = peopled(providers=5)
    court = world.contracts.court
    trial = Trial.opened(world, ACCUSED)
    bond = trial.now.bond
    trial.draw()
    trial.vote([TRUTH[:2]] * 2, trial.jurors[:2])
    world.evm.travel(DEVNET.jury_window + 61)
    world.evm.send(BOSS.address, court.advance(trial.case))
    trial.draw()
    assert trial.now.outcome == CaseOutcome.VOID
    assert world.evm.ask(court.credit_of(trial.jurors[0])) == FEE
    assert world.evm.ask(court.credit_of(ACCUSER.address)) == bond - 2 * FEE
    money(world)


@pytest.mark.rule("5.78")
def test_too_few_reveals_void_the_case() -> None:
    world = peopled()
    court = world.contracts.court
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 2, trial.jurors[:2])
    refused(world.evm, "phase", BOSS.address, court.decide(trial.case, trial.reveals()))
    world.evm.travel(DEVNET.jury_window + 1)
    third = trial.opening(trial.jurors[2], TRUTH[:2])
    refused(world.evm, "phase", BOSS.address, court.reveal(trial.case, [third]))
    assert trial.decide().outcome == CaseOutcome.VOID
    money(world)


def test_a_case_whose_commitments_nobody_opens_ends_and_can_be_named_again() -> None:
    world = peopled()
    court = world.contracts.court
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 7)
    world.evm.travel(DEVNET.jury_window)
    refused(world.evm, "early", BOSS.address, court.decide(trial.case, []))
    world.evm.travel(1)
    world.evm.send(BOSS.address, court.decide(trial.case, []))
    assert trial.now.outcome == CaseOutcome.UNOPENED
    assert world.evm.ask(court.credit_of(trial.jurors[0])) == 2 * PAY + FEE
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
    money(world)
    Trial(world, trial.evidence).open()
    money(world)


@pytest.mark.rule("I5", "5.75")
def test_a_beacon_that_never_answers_burns_the_bond() -> None:
    world = peopled()
    court = world.contracts.court
    trial = Trial.opened(world, ACCUSED)
    bond, info = trial.now.bond, world.contracts.deployment.beacon_info()
    refused(world.evm, "beacon", BOSS.address, court.draw_jury(trial.case))
    world.evm.now = (
        info.genesis_time + (trial.now.round - 1) * info.period + DEVNET.jury_beacon_missing
    )
    refused(world.evm, "early", BOSS.address, court.advance(trial.case))
    world.evm.travel(1)
    world.evm.send(BOSS.address, court.advance(trial.case))
    assert trial.now.outcome == CaseOutcome.NO_BEACON and world.evm.ask(court.burned()) == bond
    money(world)


@pytest.mark.rule("5.75")
def test_a_proven_round_cannot_be_given_up() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    world.prove(trial.now.round)
    world.evm.travel(DEVNET.jury_beacon_missing + 10)
    refused(world.evm, "phase", BOSS.address, world.contracts.court.advance(trial.case))
