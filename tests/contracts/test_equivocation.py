"""Tests that two Commits for one assignment convict by themselves, and nothing else does."""

import pytest

from contracts.evm import Mined, refused
from contracts.fault_evidence import SENDER, faults_money, other_commit, provers_market
from contracts.market import BOSS, CLASS, COORDINATOR, STATEMENT, Evidence, Market, key, market
from quorate_contracts.bindings.events import FaultProven
from quorate_contracts.bindings.faults import FaultKind
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET, USD
from quorate_protocol.messages.envelope import HALF_ORDER, seal
from quorate_protocol.units import Amount, Price, Seconds, Signature, UnixSeconds
from quorate_protocol.values import replace

OWNER = key("owner0").address
PRICE, DURATION = Price(36 * USD), Seconds(1000)
COST = PRICE * DURATION // 3600  # 10 USD
FEE = DEVNET.jury_gas_fee
KEYS_LAST = 2 * HALF_ORDER + 1
OLD_KEY = key("operator0")


@pytest.fixture
def world() -> Market:
    made = provers_market(market)
    made.provider(0, slots=2)
    made.client(0)
    return made


def execution(world: Market, **changes: object) -> Evidence:
    terms: dict[str, object] = {"max_price_per_hour": PRICE, "price_per_hour": PRICE}
    terms |= {"max_duration": DURATION, "accept_by": UnixSeconds(world.evm.now)}
    return world.execution(OWNER, key("client0"), **terms | changes)


def prove(world: Market, found: Evidence) -> Mined:
    shown = found.shown.run
    call = world.contracts.faults.equivocation(
        shown.assignment, shown.commit, other_commit(world, found)
    )
    return world.evm.send(SENDER.address, call)


@pytest.mark.rule("5.87")
def test_a_first_equivocation_costs_the_pay_of_the_job(world: Market) -> None:
    stakes, faults, found = world.contracts.stakes, world.contracts.faults, execution(world)
    proven = [event for event in prove(world, found).events if isinstance(event, FaultProven)]
    assert proven == [
        FaultProven(
            OWNER, FaultKind.EQUIVOCATION, found.assignment_hash, Amount(COST), Amount(COST - FEE)
        )
    ]
    assert world.evm.ask(stakes.stake_of(OWNER)) == 2 * DEVNET.slot_stake - COST
    assert world.evm.ask(stakes.open_slots_of(OWNER, CLASS)) == 2
    before = world.balance(SENDER.address)
    world.evm.send(BOSS.address, faults.withdraw(SENDER.address))
    assert world.balance(SENDER.address) == before + FEE
    faults_money(world)


@pytest.mark.rule("5.87")
@pytest.mark.parametrize("late", [0, 1])
def test_a_second_one_within_ninety_days_is_a_slash(world: Market, late: int) -> None:
    stakes = world.contracts.stakes
    prove(world, execution(world))
    world.evm.now += 90 * DAY - 1 + late
    prove(world, execution(world))
    rest = 2 * DEVNET.slot_stake - COST - (COST if late else 8 * COST)
    assert world.evm.ask(stakes.stake_of(OWNER)) == rest
    assert world.evm.ask(stakes.open_slots_of(OWNER, CLASS)) == (2 if late else 0)
    faults_money(world)


@pytest.mark.rule("5.87", "5.130")
def test_usage_of_nothing_does_not_lower_the_fine(world: Market) -> None:
    """The cost follows from the Assignment, which the coordinator signed."""
    prove(world, execution(world, usage_ms=0))
    rest = 2 * DEVNET.slot_stake - COST
    assert world.evm.ask(world.contracts.stakes.stake_of(OWNER)) == rest


@pytest.mark.rule("5.87")
def test_each_assignment_counts_once(world: Market) -> None:
    found = execution(world)
    prove(world, found)
    third = seal(
        world.domain,
        replace(found.shown.run.commit.message, commitment=keccak256(b"a third")),
        world.operators[OWNER].sign,
    )
    call = world.contracts.faults.equivocation(
        found.shown.run.assignment, third, found.shown.run.commit
    )
    refused(world.evm, "proven", SENDER.address, call)


@pytest.mark.rule("5.87")
def test_one_commit_shown_twice_proves_nothing(world: Market) -> None:
    shown = execution(world).shown.run
    call = world.contracts.faults.equivocation(shown.assignment, shown.commit, shown.commit)
    refused(world.evm, "same", SENDER.address, call)


@pytest.mark.rule("5.87", "I5")
def test_commits_of_two_assignments_or_signers_prove_nothing(world: Market) -> None:
    faults, evm = world.contracts.faults, world.evm
    one, two = execution(world), execution(world)
    call = faults.equivocation(one.shown.run.assignment, one.shown.run.commit, two.shown.run.commit)
    refused(evm, "commit", SENDER.address, call)
    forged = other_commit(world, one, signer=key("stranger"))
    call = faults.equivocation(one.shown.run.assignment, one.shown.run.commit, forged)
    refused(evm, "commit", SENDER.address, call)


@pytest.mark.rule("5.87", "I5")
def test_an_assignment_of_nobody_proves_nothing(world: Market) -> None:
    faults, evm, found = world.contracts.faults, world.evm, execution(world)
    body, other = found.shown.run.assignment.message, other_commit(world, found)
    strange = seal(world.domain, body, key("stranger").sign)
    refused(
        evm,
        "assignment",
        SENDER.address,
        faults.equivocation(strange, found.shown.run.commit, other),
    )
    slash = world.contracts.stakes._call("slash", 300_000, COORDINATOR.address, 10**12)
    evm.send(world.contracts.court.address, slash)
    evm.travel(1)
    unbonded = execution(world)
    call = faults.equivocation(
        unbonded.shown.run.assignment, unbonded.shown.run.commit, other_commit(world, unbonded)
    )
    refused(evm, "bond", SENDER.address, call)


@pytest.mark.rule("5.87", "5.131")
@pytest.mark.parametrize(("late", "reason"), [(0, ""), (1, "late")])
def test_evidence_counts_as_long_as_in_a_case(world: Market, late: int, reason: str) -> None:
    found = execution(world)
    other = other_commit(world, found)
    world.evm.now += DEVNET.case_evidence_age + late
    call = world.contracts.faults.equivocation(
        found.shown.run.assignment, found.shown.run.commit, other
    )
    if reason:
        refused(world.evm, reason, SENDER.address, call)
    else:
        world.evm.send(SENDER.address, call)


@pytest.mark.rule("5.131")
def test_evidence_of_the_future_is_refused(world: Market) -> None:
    found = execution(world, accept_by=UnixSeconds(world.evm.now + 1))
    call = world.contracts.faults.equivocation(
        found.shown.run.assignment, found.shown.run.commit, other_commit(world, found)
    )
    refused(world.evm, "early", SENDER.address, call)


@pytest.mark.rule("2.11", "5.87")
def test_a_key_counts_up_to_its_last_second(world: Market) -> None:
    found = execution(world)
    world.evm.send(OWNER, world.contracts.stakes.rotate_key(key("operator0 next").address))
    late = execution(world, accept_by=UnixSeconds(world.evm.now + 1))
    world.evm.travel(1)
    call = world.contracts.faults.equivocation(
        late.shown.run.assignment, late.shown.run.commit, other_commit(world, late, signer=OLD_KEY)
    )
    refused(world.evm, "commit", SENDER.address, call)
    prove(world, found)


@pytest.mark.rule("3.3", "5.87")
def test_a_malleable_signature_makes_no_second_commit(world: Market) -> None:
    """A high s, zeros and the 64-byte form are no signatures. A second form of one signature over
    one Commit would be the same Commit in any case.
    """
    faults, evm, found = world.contracts.faults, world.evm, execution(world)
    other = other_commit(world, found)
    s = KEYS_LAST - int.from_bytes(other.sig[32:64], "big")
    high = Signature(other.sig[:32] + s.to_bytes(32, "big") + bytes([55 - other.sig[64]]))
    compact = Signature(other.sig[:64] + b"\x00")
    for bad in (high, Signature(bytes(64) + b"\x1b"), compact):
        call = faults.equivocation(
            found.shown.run.assignment, found.shown.run.commit, replace(other, sig=bad)
        )
        refused(evm, "signature", SENDER.address, call)


@pytest.mark.rule("3.1", "5.87")
@pytest.mark.parametrize("place", ["chain", "deployment"])
def test_commits_for_another_chain_or_deployment_prove_nothing(world: Market, place: str) -> None:
    stakes, court = world.contracts.stakes.address, world.contracts.court.address
    other = {"chain": Domain(1, stakes), "deployment": Domain(world.domain.chain_id, court)}[place]
    found = execution(world)
    body = replace(found.shown.run.commit.message, commitment=keccak256(b"another result"))
    strange = seal(other, body, world.operators[OWNER].sign)
    call = world.contracts.faults.equivocation(
        found.shown.run.assignment, found.shown.run.commit, strange
    )
    refused(world.evm, "commit", SENDER.address, call)
    moved = seal(other, found.shown.run.assignment.message, STATEMENT.sign)
    call = world.contracts.faults.equivocation(
        moved, found.shown.run.commit, other_commit(world, found)
    )
    refused(world.evm, "assignment", SENDER.address, call)
