"""Cases from opening to decision: convicted, acquitted, void, redrawn, given up. Money is
conserved after each.
"""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, BOSS, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseId, CaseOutcome, Phase, case_bond
from quorate_contracts.bindings.events import CaseOpened, Redraw, RevealsOpen, Slashed
from quorate_contracts.bindings.stakes import OPEN_BLOCK
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import ZERO_HASH, UnixSeconds

ACCUSED = key("owner0").address
THREE = [key(f"client{i}") for i in range(3)]
PAY = 20_000 * 2_000_000 // 3_600_000  # of each execution that the evidence names
FEE = DEVNET.jury_gas_fee


@pytest.mark.rule("3.24", "5.67", "5.78", "5.80", "5.81")
def test_a_liar_is_convicted_and_everybody_honest_is_made_whole() -> None:
    world = peopled()
    before = world.balance(ACCUSER.address)
    trial = Trial.opened(world, ACCUSED)
    bond = case_bond([each.shown for each in trial.evidence], DEVNET)
    assert world.balance(ACCUSER.address) == before - bond == before - 7 * (2 * 16_666 + FEE)
    decided = trial.judged([TRUTH[:2]] * 7)
    slashed = 8 * 2 * PAY
    assert (decided.convicted, decided.slashed, decided.burned) == (True, slashed, 0)
    world.evm.send(BOSS.address, world.contracts.court.withdraw(ACCUSER.address))
    # This small slash covers none of the seven jurors: the accuser's own gas comes first, the bond
    # pays what is missing
    owed = 7 * (2 * PAY + FEE)
    own = min(slashed, FEE)
    assert world.balance(ACCUSER.address) == before - owed + own + (slashed - own)
    for juror in trial.jurors:
        world.evm.send(BOSS.address, world.contracts.court.withdraw(juror))
    payouts = [
        world.balance(world.evm.ask(world.contracts.stakes.payout_of(juror)))
        for juror in trial.jurors
    ]
    assert payouts == [2 * PAY + FEE] * 7
    refused(world.evm, "amount", BOSS.address, world.contracts.court.withdraw(trial.jurors[0]))
    money(world)


@pytest.mark.rule("5.81", "5.83")
def test_a_large_slash_returns_the_bond_and_burns_the_rest() -> None:
    world = peopled()
    rich = {
        "price_per_hour": 1_500_000_000,
        "max_price_per_hour": 1_500_000_000,
        "budget": 10**9,
        "usage_ms": 30_000,
    }
    trial = Trial(world, [world.execution(ACCUSED, client, b"lie", **rich) for client in THREE[:2]])
    trial.open()
    before = world.balance(ACCUSER.address)
    decided = trial.judged([TRUTH[:2]] * 7)
    pay = 12_500_000
    assert (
        decided.slashed == DEVNET.slot_stake == 100_000_000
    )  # 8 * 25 USD would be 200: the stake is the limit
    world.evm.send(BOSS.address, world.contracts.court.withdraw(ACCUSER.address))
    costs = 7 * (2 * pay + FEE)
    assert (
        world.balance(ACCUSER.address)
        == before + 7 * (2 * pay + FEE) - (costs - (100_000_000 - FEE)) + FEE
    )
    assert decided.burned == 0
    money(world)
    cheap = peopled()
    four = Trial(
        cheap,
        [
            cheap.execution(ACCUSED, client, b"lie", **rich | {"price_per_hour": 150_000_000})
            for client in THREE[:2]
        ],
    )
    four.open()
    decided = four.judged([TRUTH[:2]] * 4 + [(TRUTH[1], TRUTH[0])] * 1 + [TRUTH[:2]] * 2)
    assert decided.convicted and decided.slashed == 8 * 2 * 1_250_000
    assert decided.burned == decided.slashed - FEE - min(
        decided.slashed - FEE, 6 * (2_500_000 + FEE)
    )
    assert decided.burned > 0
    money(cheap)


@pytest.mark.rule("5.71", "5.74")
def test_the_events_tell_a_juror_all_it_needs() -> None:
    world = peopled()
    trial = Trial(world, [world.execution(ACCUSED, client) for client in THREE])
    event = next(each for each in trial.open().events if isinstance(each, CaseOpened))
    orders = [each.shown.order.message for each in trial.evidence]
    assert event.spec_hashes == tuple(order.spec_hash for order in orders)
    assert event.input_roots == tuple(order.input_root for order in orders)
    assert event.assignment_hashes == tuple(each.assignment_hash for each in trial.evidence)
    assert event.commitments == tuple(
        each.shown.commit.message.commitment for each in trial.evidence
    )
    assert (event.max_durations, event.pays) == ((30, 30, 30), (PAY, PAY, PAY))
    assert (event.accused, event.accuser, event.host_class) == (ACCUSED, ACCUSER.address, CLASS)
    info = world.contracts.deployment.beacon_info()
    ahead = info.genesis_time + (event.round - 1) * info.period - world.evm.now
    assert 3 * info.period <= ahead < 4 * info.period


@pytest.mark.rule("5.81")
def test_convicted_provider_is_out_until_it_stakes_again() -> None:
    world = peopled()
    stakes, evm = world.contracts.stakes, world.evm
    evm.send(ACCUSED, stakes.open_slots(CLASS, 1))
    owners = evm.ask(stakes.owner_count(CLASS))
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([TRUTH[:2]] * 7)
    assert evm.ask(stakes.owner_count(CLASS)) == owners - 1
    block = evm.number - 1
    for place in (0, 9):
        slot = evm.ask(stakes.slot(CLASS, place))
        assert (
            slot.owner == ACCUSED
            and slot.until_block == block + 1
            and not slot.is_active(evm.number)
        )
    rest = 2 * DEVNET.slot_stake - decided.slashed
    assert evm.ask(stakes.stake_of(ACCUSED)) == rest
    before = world.balance(ACCUSED)
    evm.send(ACCUSED, stakes.open_slots(CLASS, 1))
    assert world.balance(ACCUSED) == before - DEVNET.slot_stake - decided.slashed, (
        "the provider stakes again what the slash took"
    )
    assert evm.ask(stakes.slot(CLASS, 10)).until_block == OPEN_BLOCK
    assert evm.ask(stakes.owner_count(CLASS)) == owners
    for place in (0, 9):
        evm.send(ACCUSED, stakes.close_slot(CLASS, place))
    assert evm.ask(stakes.owner_count(CLASS)) == owners
    evm.travel(DEVNET.unbond_after)
    for place in (0, 9):
        evm.send(ACCUSED, stakes.unbond_slot(CLASS, place))
    assert evm.ask(stakes.stake_of(ACCUSED)) == DEVNET.slot_stake
    money(world)


def test_leaving_after_a_slash_pays_no_more_than_is_left() -> None:
    world = peopled()
    stakes, evm = world.contracts.stakes, world.evm
    decided = Trial.opened(world, ACCUSED).judged([TRUTH[:2]] * 7)
    evm.send(ACCUSED, stakes.close_slot(CLASS, 0))
    evm.travel(DEVNET.unbond_after)
    before = world.balance(ACCUSED)
    evm.send(ACCUSED, stakes.unbond_slot(CLASS, 0))
    assert world.balance(ACCUSED) == before + DEVNET.slot_stake - decided.slashed
    assert evm.ask(stakes.stake_of(ACCUSED)) == 0
    money(world)


@pytest.mark.rule("5.88")
def test_nothing_unbonds_while_a_case_is_open() -> None:
    world = peopled()
    stakes, evm = world.contracts.stakes, world.evm
    evm.send(ACCUSED, stakes.close_slot(CLASS, 0))
    evm.travel(DEVNET.unbond_after)
    trial = Trial.opened(world, ACCUSED)
    assert evm.ask(stakes.frozen(ACCUSED)) == 1
    refused(evm, "frozen", ACCUSED, stakes.unbond_slot(CLASS, 0))
    trial.judged([TRUTH[:2]] * 7)
    assert evm.ask(stakes.frozen(ACCUSED)) == 0
    evm.send(ACCUSED, stakes.unbond_slot(CLASS, 0))
    money(world)


@pytest.mark.rule("5.72", "5.82")
def test_who_the_jury_agrees_with_is_acquitted_at_the_bonds_expense() -> None:
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
    call = world.contracts.court.open_case([each.shown for each in trial.evidence])
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
def test_every_execution_named_must_be_wrong_and_only_the_right_ones_are_closed() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    decided = trial.judged([(TRUTH[0], trial.own()[1])] * 7)
    assert decided.outcome == CaseOutcome.ACQUITTED
    wrong, right = trial.evidence
    fresh = world.execution(ACCUSED, THREE[2], b"another lie")
    court = world.contracts.court
    refused(world.evm, "named", ACCUSER.address, court.open_case([fresh.shown, right.shown]))
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
    assert decided.convicted and decided.slashed == 8 * 3 * PAY
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


@pytest.mark.rule("5.73", "5.76")
def test_the_jury_is_distinct_and_holds_neither_side() -> None:
    world = peopled(providers=9)
    twin = world.provider(20)
    world.evm.send(twin, world.contracts.stakes.change_payout(key("payout3").address))
    world.evm.travel(1)
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    assert len(set(trial.jurors)) == 7 and ACCUSED not in trial.jurors
    assert not {twin, key("owner3").address} <= set(trial.jurors), "one payout address has one seat"


@pytest.mark.rule("I9", "5.76")
def test_the_accused_does_not_choose_by_its_payout_who_judges_it() -> None:
    """Once the round is known: with another's payout address it kept that owner off its jury,
    and where there are few it had none (I9).
    """
    world = peopled(providers=4)
    trial = Trial.opened(world, ACCUSED)
    world.prove(trial.now.round)
    world.evm.send(ACCUSED, world.contracts.stakes.change_payout(key("payout1").address))
    trial.draw()
    assert set(trial.jurors) == {key(f"owner{i}").address for i in range(1, 4)}


@pytest.mark.rule("5.73")
def test_all_there_are_judge_when_there_are_few() -> None:
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


@pytest.mark.rule("5.79")
def test_two_thirds_of_four_are_three() -> None:
    world = peopled(providers=5)
    trial = Trial.opened(world, ACCUSED)
    assert trial.judged([TRUTH[:2]] * 3 + [trial.own()]).convicted
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
def test_fewer_owners_than_the_least_open_no_case() -> None:
    world = peopled(providers=2)
    shown = [world.execution(ACCUSED, client).shown for client in THREE[:2]]
    refused(world.evm, "owners", ACCUSER.address, world.contracts.court.open_case(shown))


@pytest.mark.rule("5.75", "5.77", "5.78")
def test_no_shows_are_redrawn_once_at_a_new_round() -> None:
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
    event = evm.send(BOSS.address, court.advance(trial.case)).events[0]
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
    event = evm.send(BOSS.address, court.advance(trial.case)).events[0]
    assert event == RevealsOpen(trial.case, UnixSeconds(evm.now + DEVNET.jury_window)), (
        "the second time those who voted go on"
    )
    trial.reveal([TRUTH[:2]] * 6, trial.jurors[:6])
    assert trial.decide().convicted
    assert evm.ask(court.credit_of(first[5])) == 0 == evm.ask(court.credit_of(trial.jurors[6]))
    money(world)


@pytest.mark.rule("5.77")
def test_nobody_left_to_redraw_lets_those_who_voted_go_on() -> None:
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
    refused(
        world.evm,
        "phase",
        BOSS.address,
        court.decide(trial.case, [each.reveal for each in trial.evidence]),
    )
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
    assert trial.now.outcome == CaseOutcome.UNOPENED and world.evm.ask(court.burned()) > 0
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


@pytest.mark.rule("I1")
def test_two_cases_against_one_provider_run_side_by_side() -> None:
    world = peopled()
    first, second = Trial.opened(world, ACCUSED), Trial.opened(world, ACCUSED)
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 2 and second.case == CaseId(2)
    assert first.judged([TRUTH[:2]] * 7).convicted
    decided = second.judged([TRUTH[:2]] * 7)
    assert decided.convicted and decided.slashed == 16 * PAY
    assert world.evm.ask(world.contracts.stakes.owner_count(CLASS)) == 8
    money(world)


@pytest.mark.rule("7.3")
def test_a_slash_is_published_by_the_registry() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 7)
    mined = world.evm.send(
        BOSS.address,
        world.contracts.court.decide(trial.case, [each.reveal for each in trial.evidence]),
    )
    assert any(isinstance(event, Slashed) and event.account == ACCUSED for event in mined.events)
