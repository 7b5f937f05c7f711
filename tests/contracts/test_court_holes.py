"""Tests, one by name each, that known attacks on the court take no honest stake and free no liar.

The rules are in PROTOCOL §5, The court. Money is conserved after each case.
"""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, BOSS, CLASS, Market, executed, key, peopled
from contracts.trial import TRUE, TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseOutcome
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_TIMEOUT,
    ZERO_HASH,
    ExitStatus,
    Milliseconds,
    Price,
    Seconds,
)
from quorate_protocol.values import replace

ACCUSED = key("owner0").address
CLIENTS = [key(f"client{i}") for i in range(3)]
FEE = DEVNET.jury_gas_fee


def accusing(world: Market, **changes: object) -> Trial:
    """Returns a case that is not opened yet."""
    made = [world.execution(ACCUSED, client, b"lie", **changes) for client in CLIENTS[:2]]
    return Trial(world, made)


def refused_case(trial: Trial, reason: str) -> None:
    call = trial.market.contracts.cases.open_case([each.shown for each in trial.evidence])
    refused(trial.market.evm, reason, ACCUSER.address, call)


def stake(world: Market) -> int:
    return world.evm.ask(world.contracts.stakes.stake_of(ACCUSED))


@pytest.mark.rule("I5", "5.119", "5.120")
@pytest.mark.parametrize("shown", [b"lie", b"what no juror finds"])
def test_a_program_that_reads_the_clock_frames_nobody_over_an_agreed_result(shown: bytes) -> None:
    """All agreed on the day, and the jury finds another result today. Only a result that another
    owner committed to on the day, and that the jury finds too, convicts.
    """
    world = peopled()
    trial = accusing(world)
    trial.evidence = [each.against(world, shown) for each in trial.evidence]
    trial.open()
    assert trial.judged([TRUTH[:2]] * 7).outcome == CaseOutcome.ACQUITTED
    assert stake(world) == DEVNET.slot_stake
    if shown == b"lie":
        refused_case(trial, "named")
    money(world)


@pytest.mark.rule("5.119")
def test_a_contradiction_is_another_owners_commit_to_the_same_job() -> None:
    world = peopled()
    trial = accusing(world)
    first, second = trial.evidence
    for reason, other in (
        ("contradiction", first.against(world, TRUE[0], ACCUSED)),
        ("commit", first.against(world, TRUE[0], key("nobody").address)),
        ("class", first.against(world, TRUE[0], host_class=keccak256(b"another class"))),
    ):
        trial.evidence = [other, second]
        refused_case(trial, reason)
    job = second.shown.job.order.message
    foreign, _ = executed(world, job, key("owner3").address, TRUE[0], {})
    trial.evidence = [replace(first, shown=replace(first.shown, contradiction=foreign)), second]
    refused_case(trial, "blind")


@pytest.mark.rule("5.120")
@pytest.mark.parametrize("status", [EXIT_TIMEOUT, EXIT_MEMORY_KILL])
@pytest.mark.parametrize("is_mine", [True, False])
def test_a_time_out_or_memory_kill_convicts_nobody(status: ExitStatus, is_mine: bool) -> None:
    world = peopled()
    killed = {"exit_status": status}
    trial = accusing(world, **(killed if is_mine else {}))
    first, second = trial.evidence
    if not is_mine:
        trial.evidence = [first.against(world, TRUE[0], **killed), second]
    trial.open()
    found = (trial.evidence[0].digest, TRUTH[1]) if is_mine else TRUTH[:2]
    if not is_mine:
        found = (result_digest(status, keccak256(TRUE[0])), TRUTH[1])
    assert trial.judged([found] * 7).outcome == CaseOutcome.ACQUITTED
    assert stake(world) == DEVNET.slot_stake


@pytest.mark.rule("5.80", "5.81")
def test_a_second_commit_with_usage_zero_does_not_lower_the_slash() -> None:
    price = {"price_per_hour": Price(150_000_000), "max_price_per_hour": Price(150_000_000)}
    slashed = []
    for usage in (20_000, 0):
        world = peopled()
        trial = accusing(world, usage_ms=Milliseconds(usage), budget=10**7, **price)
        trial.open()
        slashed.append(trial.judged([TRUTH[:2]] * 7).slashed)
    assert slashed == [7 * (2 * 1_250_000 + FEE) + FEE] * 2


@pytest.mark.rule("5.81")
@pytest.mark.parametrize("left", [None, 300_000])
def test_an_accuser_that_wins_is_not_robbed(left: int | None) -> None:
    """Cheap executions, or a stake that is nearly gone: the jury's costs are not the accuser's."""
    world = peopled()
    if left is not None:
        dear = {"price_per_hour": Price(10**10), "max_price_per_hour": Price(10**10)}
        for _ in range(1):
            trial = accusing(world, budget=20 * 10**6, **dear)
            trial.evidence = trial.evidence[:2]
            trial.open()
            assert trial.judged([TRUTH[:2]] * 7).slashed == DEVNET.slot_stake
        world.evm.send(ACCUSED, world.contracts.stakes.open_slots(CLASS, 1))
    before = world.balance(ACCUSER.address) + world.evm.ask(
        world.contracts.court.credit_of(ACCUSER.address)
    )
    trial = accusing(world)
    trial.open()
    assert trial.judged([TRUTH[:2]] * 7).convicted
    world.evm.send(BOSS.address, world.contracts.court.withdraw(ACCUSER.address))
    assert world.balance(ACCUSER.address) == before + FEE
    money(world)


@pytest.mark.rule("5.121")
def test_a_coordinator_without_bond_hides_no_execution_in_a_case() -> None:
    """An account that never was a coordinator signs executions that never were, so that a case
    over them closes before a real one opens.
    """
    world = peopled()
    trial = accusing(world)
    fake, operator = key("owner5").address, key("operator5")
    evidence = []
    for each in trial.evidence:
        job, order = each.shown.job, replace(each.shown.job.order.message, coordinator=fake)
        client = next(one for one in CLIENTS if one.address == order.client)
        session = replace(job.session.message, coordinator=fake)
        signed = replace(
            job,
            session=seal(world.domain, session, client.sign),
            order=seal(world.domain, order, key("session of " + client.address.hex()).sign),
        )
        runs = [
            executed(world, order, provider, TRUE[0], {"coordinator": fake})[0]
            for provider in (ACCUSED, key("owner1").address)
        ]
        resigned = [
            replace(run, assignment=seal(world.domain, run.assignment.message, operator.sign))
            for run in runs
        ]
        shown = replace(each.shown, job=signed, run=resigned[0], contradiction=resigned[1])
        evidence.append(replace(each, shown=shown))
    whole, trial.evidence = trial.evidence, evidence
    refused_case(trial, "bond")
    trial.evidence = [whole[0], evidence[1]]
    refused_case(trial, "coordinator")


@pytest.mark.rule("5.122")
def test_a_case_of_ninety_one_days_at_price_zero_is_refused_and_no_juror_works_for_nothing() -> (
    None
):
    world = peopled()
    longest = DEVNET.case_duration_max // 2
    refused_case(accusing(world, max_duration=Seconds(91 * 86_400)), "duration")
    refused_case(accusing(world, max_duration=Seconds(longest + 1)), "duration")
    trial = accusing(world, max_duration=Seconds(longest), price_per_hour=Price(0))
    trial.open()
    trial.judged([TRUTH[:2]] * 7)
    earned = world.evm.ask(world.contracts.court.credit_of(trial.jurors[0]))
    assert earned == 2 * DEVNET.jury_pay_min + FEE


@pytest.mark.rule("5.72", "5.123")
def test_inputs_that_are_withdrawn_freeze_a_stake_twice_at_most() -> None:
    world = peopled(providers=9)
    trial = accusing(world)
    for _ in range(2):
        trial.open()
        assert trial.judged([(ZERO_HASH, TRUTH[1])] * 7).outcome == CaseOutcome.VOID
    refused_case(trial, "named")
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
    fresh = world.execution(ACCUSED, CLIENTS[2], b"lie")
    again = Trial(world, [trial.evidence[1], fresh])
    again.open()
    assert again.judged([TRUTH[:2]] * 7).convicted, "the execution that was not void may be named"


@pytest.mark.rule("5.123")
def test_time_in_a_void_case_does_not_age_the_evidence() -> None:
    world = peopled(providers=9)
    trial = accusing(world)
    trial.open()
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    world.evm.travel(DEVNET.jury_window + 1)
    trial.evidence = list(trial.evidence)
    world.evm.send(BOSS.address, world.contracts.court.decide(trial.case, trial.reveals()))
    took = trial.now.ended_at - trial.now.opened_at
    assert trial.now.outcome == CaseOutcome.VOID and took > DEVNET.jury_window
    accept_by = trial.evidence[0].shown.run.assignment.message.accept_by
    world.evm.now = accept_by + 30 + DEVNET.case_evidence_age + took + 1
    refused_case(trial, "late")
    world.evm.now -= 1
    trial.open()


@pytest.mark.rule("5.77", "5.79")
def test_jurors_that_stay_away_acquit_nobody_and_lose_a_deposit() -> None:
    world = peopled(providers=8)
    stakes, evm = world.contracts.stakes, world.evm
    trial = accusing(world)
    trial.open()
    trial.draw()
    absent, silent, rest = trial.jurors[:2], trial.jurors[2:4], trial.jurors[4:]
    trial.vote([TRUTH[:2]] * 5, trial.jurors[2:])
    evm.travel(DEVNET.jury_window + 61)
    evm.send(BOSS.address, world.contracts.court.advance(trial.case))
    trial.draw()
    trial.reveal([TRUTH[:2]] * 3, rest)
    evm.travel(DEVNET.jury_window + 1)
    assert trial.decide().convicted, "all three that revealed agree"
    for juror in (*absent, *silent):
        assert evm.ask(stakes.stake_of(juror)) == DEVNET.slot_stake - DEVNET.jury_seat_deposit
    for juror in rest:
        assert evm.ask(stakes.stake_of(juror)) == DEVNET.slot_stake
    money(world)


@pytest.mark.rule("5.124")
def test_an_accused_does_not_end_its_case_by_closing_its_slots() -> None:
    world = peopled(providers=4)
    trial = accusing(world)
    world.evm.send(ACCUSED, world.contracts.stakes.close_slot(CLASS, 0))
    trial.open()
    assert trial.judged([TRUTH[:2]] * 3).convicted
    few = peopled(providers=3)
    refused_case(accusing(few), "owners")
    few.evm.send(ACCUSED, few.contracts.stakes.close_slot(CLASS, 0))
    refused_case(accusing(few), "owners")


@pytest.mark.rule("5.74")
def test_a_payout_changed_after_the_round_is_known_changes_no_jury() -> None:
    seated = []
    for is_changed in (False, True):
        world = peopled(providers=12)
        trial = accusing(world)
        trial.open()
        world.prove(trial.now.round)
        for number in range(1, 12) if is_changed else ():
            call = world.contracts.stakes.change_payout(key(f"new payout {number}").address)
            world.evm.send(key(f"owner{number}").address, call)
        trial.draw()
        seated.append(trial.jurors)
    assert seated[0] == seated[1] and len(seated[0]) == 7


@pytest.mark.rule("5.71", "5.83")
def test_a_juror_that_copies_a_ballot_cannot_open_it() -> None:
    world = peopled()
    trial = accusing(world)
    trial.open()
    trial.draw()
    author, copier = trial.jurors[:2]
    original = trial.signed_vote(author, TRUTH[:2])
    copy = seal(world.domain, replace(original.message, juror=copier), world.operators[copier].sign)
    world.evm.send(BOSS.address, world.contracts.court.vote(trial.case, [copy]))
    trial.vote([TRUTH[:2]] * 6, [each for each in trial.jurors if each != copier])
    opening = trial.opening(author, TRUTH[:2])
    call = world.contracts.court.reveal(trial.case, [replace(opening, juror=copier)])
    refused(world.evm, "reveal", BOSS.address, call)
    trial.reveal([TRUTH[:2]] * 6, [each for each in trial.jurors if each != copier])
    world.evm.travel(DEVNET.jury_window + 1)
    assert trial.decide().convicted
    assert world.evm.ask(world.contracts.court.credit_of(copier)) == 0
