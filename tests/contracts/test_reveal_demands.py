"""Tests demands: a provider opens its commitment on chain, or pays for its silence."""

import pytest

from contracts.evm import refused
from contracts.fault_evidence import (
    SENDER,
    commit_set,
    faults_money,
    frozen,
    other_commit,
    provers_market,
)
from contracts.market import BOSS, CLASS, Evidence, Market, key, market
from quorate_contracts.bindings.events import DemandOpened, FaultProven, RevealAnswered
from quorate_contracts.bindings.faults import FaultKind
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Price, Seconds, UnixSeconds
from quorate_protocol.values import replace

OWNER, PAYOUT = key("owner0").address, key("payout0").address
PRICE, DURATION = Price(36 * USD), Seconds(1000)
COST = PRICE * DURATION // 3600
FEE = DEVNET.jury_gas_fee


@pytest.fixture
def world() -> Market:
    made = provers_market(market)
    made.provider(0, slots=2)
    made.client(0)
    return made


def execution(world: Market) -> Evidence:
    return world.execution(
        OWNER,
        key("client0"),
        max_price_per_hour=PRICE,
        price_per_hour=PRICE,
        max_duration=DURATION,
        accept_by=UnixSeconds(world.evm.now),
    )


def demand(world: Market, found: Evidence) -> int:
    """Demands the reveal; returns by when it must be answered."""
    call = world.contracts.faults.demand_reveal(
        commit_set(world, found), found.shown.run.assignment.message, found.shown.run.commit
    )
    events = world.evm.send(SENDER.address, call).events
    opened = next(event for event in events if isinstance(event, DemandOpened))
    assert (opened.subject, opened.liable, opened.kind) == (found.assignment_hash, OWNER, 2)
    return opened.answer_by


@pytest.mark.rule("5.63", "5.89")
def test_an_answered_demand_pays_the_provider_and_frees_its_stake(world: Market) -> None:
    faults, found = world.contracts.faults, execution(world)
    before = world.balance(SENDER.address)
    answer_by = demand(world, found)
    assert frozen(world, OWNER) == 1 and world.balance(SENDER.address) == before - FEE
    faults_money(world, open_demands=1)
    world.evm.now = answer_by
    shown = found.reveal
    answered = world.evm.send(BOSS.address, faults.answer_reveal(shown)).events
    assert (
        RevealAnswered(
            found.assignment_hash, OWNER, shown.exit_status, shown.output_digest, shown.salt
        )
        in answered
    )
    assert (
        frozen(world, OWNER) == 0
        and not world.evm.ask(faults.demand(shown.assignment_hash)).is_open
    )
    world.evm.send(BOSS.address, faults.withdraw(OWNER))
    assert world.balance(PAYOUT) == FEE
    refused(world.evm, "phase", BOSS.address, faults.answer_reveal(shown))
    refused(world.evm, "phase", BOSS.address, faults.punish_unanswered(found.assignment_hash))
    faults_money(world)


@pytest.mark.rule("5.63")
def test_an_unanswered_demand_costs_the_pay_and_the_next_one_is_a_slash(world: Market) -> None:
    c, evm = world.contracts, world.evm
    first, second = execution(world), execution(world)
    before = world.balance(SENDER.address)
    for found in (first, second):
        evm.now = demand(world, found)
        refused(evm, "early", BOSS.address, c.faults.punish_unanswered(found.assignment_hash))
        evm.travel(1)
        refused(evm, "phase", BOSS.address, c.faults.answer_reveal(found.reveal))
        events = evm.send(BOSS.address, c.faults.punish_unanswered(found.assignment_hash)).events
        assert any(
            isinstance(event, FaultProven) and event.kind == FaultKind.UNREVEALED
            for event in events
        )
        faults_money(world)
        if found is first:
            assert evm.ask(c.stakes.open_slots_of(OWNER, CLASS)) == 2
    assert evm.ask(c.stakes.stake_of(OWNER)) == 2 * DEVNET.slot_stake - 9 * COST
    assert evm.ask(c.stakes.open_slots_of(OWNER, CLASS)) == 0 and frozen(world, OWNER) == 0
    evm.send(BOSS.address, c.faults.withdraw(SENDER.address))
    assert world.balance(SENDER.address) == before + 2 * FEE, "both bonds, and its gas twice"


@pytest.mark.rule("5.63")
def test_another_reveal_does_not_answer(world: Market) -> None:
    faults, found = world.contracts.faults, execution(world)
    refused(world.evm, "phase", BOSS.address, faults.answer_reveal(found.reveal))
    demand(world, found)
    for wrong in (
        replace(found.reveal, salt=keccak256(b"other")),
        replace(found.reveal, output_digest=keccak256(b"other")),
    ):
        refused(world.evm, "reveal", BOSS.address, faults.answer_reveal(wrong))
    refused(world.evm, "phase", BOSS.address, faults.answer_secret(found.assignment_hash, CLASS))


@pytest.mark.rule("5.63")
def test_a_demand_is_made_once(world: Market) -> None:
    found = execution(world)
    demand(world, found)
    again = world.contracts.faults.demand_reveal(
        commit_set(world, found), found.shown.run.assignment.message, found.shown.run.commit
    )
    refused(world.evm, "demanded", SENDER.address, again)
    world.evm.send(BOSS.address, world.contracts.faults.answer_reveal(found.reveal))
    refused(world.evm, "demanded", SENDER.address, again)


@pytest.mark.rule("5.63", "I8")
def test_nobody_is_asked_before_its_batch_is_closed(world: Market) -> None:
    """The coordinator's CommitSet must hold this very commit."""
    faults, evm, found = world.contracts.faults, world.evm, execution(world)
    assignment, commit = found.shown.run.assignment.message, found.shown.run.commit
    other = commit_set(world, execution(world))
    call = faults.demand_reveal(other, assignment, commit)
    refused(evm, "commit", SENDER.address, call)
    # Another Commit of the same assignment is not in the set
    second = other_commit(world, found)
    call = faults.demand_reveal(commit_set(world, found), assignment, second)
    refused(evm, "commit", SENDER.address, call)
    forged = commit_set(world, found, signer=key("client0"))
    refused(evm, "set", SENDER.address, faults.demand_reveal(forged, assignment, commit))
    tomorrow = commit_set(world, found)
    later = replace(tomorrow.message, closed_at=UnixSeconds(world.evm.now + 1))
    call = faults.demand_reveal(replace(tomorrow, message=later), assignment, commit)
    refused(evm, "early", SENDER.address, call)


@pytest.mark.rule("5.131")
@pytest.mark.parametrize("late", [0, 1])
def test_a_demand_comes_within_the_age_of_evidence(world: Market, late: int) -> None:
    found = execution(world)
    call = world.contracts.faults.demand_reveal(
        commit_set(world, found), found.shown.run.assignment.message, found.shown.run.commit
    )
    world.evm.now += DEVNET.case_evidence_age + late
    if late:
        refused(world.evm, "late", SENDER.address, call)
    else:
        world.evm.send(SENDER.address, call)


@pytest.mark.rule("5.89")
def test_no_slot_unbonds_while_a_demand_is_open(world: Market) -> None:
    stakes = world.contracts.stakes
    world.evm.send(OWNER, stakes.close_slot(CLASS, 0))
    world.evm.travel(DEVNET.unbond_after)
    demand(world, execution(world))
    refused(world.evm, "frozen", OWNER, stakes.unbond_slot(CLASS, 0))
