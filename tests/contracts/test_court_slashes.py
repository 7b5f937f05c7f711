"""What a conviction takes and pays, and what the provider can do with its stake.

Money is conserved after each case.
"""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, BOSS, CLASS, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.cases import case_bond
from quorate_contracts.bindings.court import CaseId
from quorate_contracts.bindings.events import Slashed
from quorate_contracts.bindings.stakes import OPEN_BLOCK
from quorate_protocol.limits import DEVNET

ACCUSED = key("owner0").address
THREE = [key(f"client{i}") for i in range(3)]
PAY = DEVNET.jury_pay_min  # of a juror for each execution: 30 seconds at 2 USD cost less
FEE = DEVNET.jury_gas_fee


@pytest.mark.rule("3.24", "5.67", "5.78", "5.80", "5.81")
def test_a_conviction_pays_the_jurors_and_returns_the_slash_to_the_accuser() -> None:
    world = peopled()
    before = world.balance(ACCUSER.address)
    trial = Trial.opened(world, ACCUSED)
    bond = case_bond([each.shown for each in trial.evidence], DEVNET)
    assert world.balance(ACCUSER.address) == before - bond == before - 7 * (2 * PAY + FEE)
    decided = trial.judged([TRUTH[:2]] * 7)
    owed = 7 * (2 * PAY + FEE)
    assert (decided.convicted, decided.slashed, decided.burned) == (True, owed + FEE, 0)
    world.evm.send(BOSS.address, world.contracts.court.withdraw(ACCUSER.address))
    assert world.balance(ACCUSER.address) == before + FEE, "the whole bond, and gas"
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
    assert world.balance(ACCUSER.address) == before + 7 * (2 * pay + FEE) + FEE
    credits = [world.evm.ask(world.contracts.court.credit_of(juror)) for juror in trial.jurors]
    assert credits == [(100_000_000 - FEE) // 7] * 7, "all get the same share of what there is"
    assert decided.burned == (100_000_000 - FEE) % 7
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


@pytest.mark.rule("5.81")
def test_convicted_provider_loses_its_slots_until_it_stakes_again() -> None:
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
def test_no_slot_unbonds_while_a_case_is_open() -> None:
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


@pytest.mark.rule("I1")
def test_two_cases_against_one_provider_run_side_by_side() -> None:
    world = peopled()
    first, second = Trial.opened(world, ACCUSED), Trial.opened(world, ACCUSED)
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 2 and second.case == CaseId(2)
    assert first.judged([TRUTH[:2]] * 7).convicted
    decided = second.judged([TRUTH[:2]] * 7)
    assert decided.convicted and decided.slashed == 7 * (2 * PAY + FEE) + FEE
    assert world.evm.ask(world.contracts.stakes.owner_count(CLASS)) == 8
    money(world)


@pytest.mark.rule("7.3")
def test_a_slash_is_published_by_the_registry() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 7)
    mined = world.evm.send(BOSS.address, world.contracts.court.decide(trial.case, trial.reveals()))
    assert any(isinstance(event, Slashed) and event.account == ACCUSED for event in mined.events)
