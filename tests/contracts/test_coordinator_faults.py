"""Tests faults that cost a coordinator its bond: two Acks, two Statements, an Ack after retirement,
and a secret that stays closed.
"""

import pytest

from contracts.evm import refused
from contracts.fault_evidence import (
    SECRET_X,
    SENDER,
    ack,
    faults_money,
    frozen,
    provers_market,
    statement,
)
from contracts.market import BOSS, COORDINATOR, Market, key, market
from quorate_contracts.bindings.events import FaultProven, SecretAnswered
from quorate_contracts.bindings.faults import FaultKind
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import HALF_ORDER
from quorate_protocol.units import Signature
from quorate_protocol.values import replace

WHO = COORDINATOR.address
JOB = keccak256(b"a job")
PENALTY, FEE = DEVNET.coordinator_fault_penalty, DEVNET.jury_gas_fee
KEYS_LAST = 2 * HALF_ORDER + 1


@pytest.fixture
def world() -> Market:
    made = provers_market(market)
    made.provider(0)
    made.client(0)
    return made


def lost(world: Market) -> int:
    return DEVNET.coordinator_bond - world.evm.ask(world.contracts.stakes.bond_of(WHO))


@pytest.mark.rule("6.60")
def test_two_acks_for_one_job_cost_the_bond_once(world: Market) -> None:
    faults, evm = world.contracts.faults, world.evm
    one, other = ack(world, JOB), ack(world, JOB, epoch=2)
    call = faults.two_acks(WHO, one, other)
    proven = [e for e in evm.send(SENDER.address, call).events if isinstance(e, FaultProven)]
    assert [(e.liable, e.kind, e.subject, e.slashed) for e in proven] == [
        (WHO, FaultKind.TWO_ACKS, JOB, PENALTY)
    ]
    assert lost(world) == PENALTY and evm.ask(faults.credit_of(SENDER.address)) == FEE
    refused(evm, "proven", SENDER.address, call)
    refused(evm, "proven", SENDER.address, faults.two_acks(WHO, other, ack(world, JOB, epoch=3)))
    faults_money(world)


@pytest.mark.rule("6.60", "I5")
def test_acks_that_prove_nothing(world: Market) -> None:
    faults, evm, one = world.contracts.faults, world.evm, ack(world, JOB)
    refused(evm, "same", SENDER.address, faults.two_acks(WHO, one, one))
    other = ack(world, keccak256(b"another job"))
    refused(evm, "job", SENDER.address, faults.two_acks(WHO, one, other))
    forged = ack(world, JOB, epoch=2, signer=key("stranger"))
    refused(evm, "ack", SENDER.address, faults.two_acks(WHO, one, forged))
    second = ack(world, JOB, epoch=2)
    s = KEYS_LAST - int.from_bytes(second.sig[32:64], "big")
    high = Signature(second.sig[:32] + s.to_bytes(32, "big") + bytes([55 - second.sig[64]]))
    bent = replace(second, sig=high)
    refused(evm, "signature", SENDER.address, faults.two_acks(WHO, one, bent))


@pytest.mark.rule("6.60")
@pytest.mark.parametrize("late", [0, 1])
def test_acks_count_within_the_age_of_evidence(world: Market, late: int) -> None:
    call = world.contracts.faults.two_acks(WHO, ack(world, JOB), ack(world, JOB, epoch=2))
    world.evm.now += DEVNET.case_evidence_age + late
    if late:
        refused(world.evm, "late", SENDER.address, call)
    else:
        world.evm.send(SENDER.address, call)


@pytest.mark.rule("6.61")
def test_two_statements_of_one_number_cost_the_bond_once(world: Market) -> None:
    faults, evm, owner = world.contracts.faults, world.evm, key("owner0").address
    one, other = statement(world, owner, 1), statement(world, owner, 2)
    evm.send(SENDER.address, faults.two_statements(WHO, one, other))
    assert lost(world) == PENALTY
    refused(evm, "proven", SENDER.address, faults.two_statements(WHO, other, one))
    refused(evm, "same", SENDER.address, faults.two_statements(WHO, one, one))
    later = statement(world, owner, 2, seq=6)
    refused(evm, "statement", SENDER.address, faults.two_statements(WHO, one, later))
    someone = statement(world, BOSS.address, 2)
    refused(evm, "statement", SENDER.address, faults.two_statements(WHO, one, someone))
    forged = statement(world, owner, 3, signer=key("stranger"))
    refused(evm, "statement", SENDER.address, faults.two_statements(WHO, one, forged))
    faults_money(world)


@pytest.mark.rule("6.61")
@pytest.mark.parametrize("late", [0, 1])
def test_a_replaced_statement_key_counts_for_the_age_of_evidence(world: Market, late: int) -> None:
    """So a thief of an old key does not drain the bond for ever."""
    owner, evm = key("owner0").address, world.evm
    evm.send(WHO, world.contracts.stakes.rotate_key(key("next statement key").address))
    evm.now += DEVNET.case_evidence_age + late
    one, other = statement(world, owner, 1), statement(world, owner, 2)
    call = world.contracts.faults.two_statements(WHO, one, other)
    if late:
        refused(evm, "late", SENDER.address, call)
    else:
        evm.send(SENDER.address, call)


@pytest.mark.rule("5.90", "6.62")
@pytest.mark.parametrize("late", [0, 1])
def test_an_ack_after_retirement_costs_the_bond(world: Market, late: int) -> None:
    """A coordinator learns late that its retirement is on chain, so a grace passes first."""
    faults, evm = world.contracts.faults, world.evm
    refused(evm, "time", SENDER.address, faults.late_ack(WHO, ack(world, JOB)))
    evm.send(WHO, world.contracts.stakes.retire_coordinator())
    evm.now += DEVNET.ack_age_max + late
    call = faults.late_ack(WHO, ack(world, JOB))
    if not late:
        refused(evm, "time", SENDER.address, call)
        return
    evm.send(SENDER.address, call)
    assert lost(world) == PENALTY
    refused(evm, "proven", SENDER.address, call)
    faults_money(world)


@pytest.mark.rule("5.14", "5.89")
def test_an_opened_secret_pays_the_coordinator(world: Market) -> None:
    faults, evm = world.contracts.faults, world.evm
    found = world.execution(key("owner0").address, key("client0"), expiry=evm.now + 5)
    order = found.shown.job.order.message
    job = digest(world.domain, order)
    signed = ack(world, job)
    evm.now += 5 + DEVNET.max_hold - 1
    call = faults.demand_secret(order, signed)
    refused(evm, "early", SENDER.address, call)
    evm.travel(1)
    evm.send(SENDER.address, call)
    assert frozen(world) == 1
    refused(evm, "secret", BOSS.address, faults.answer_secret(job, keccak256(b"another")))
    refused(evm, "demanded", SENDER.address, call)
    evm.now = evm.ask(faults.demand(job)).answer_by
    answered = evm.send(BOSS.address, faults.answer_secret(job, SECRET_X)).events
    assert SecretAnswered(job, WHO, SECRET_X) in answered
    assert frozen(world) == 0 and evm.ask(faults.credit_of(WHO)) == FEE and lost(world) == 0
    faults_money(world)


@pytest.mark.rule("5.14")
def test_a_secret_that_stays_closed_costs_the_bond(world: Market) -> None:
    faults, evm = world.contracts.faults, world.evm
    found = world.execution(key("owner0").address, key("client0"), expiry=evm.now + 5)
    order = found.shown.job.order.message
    job, signed = digest(world.domain, order), ack(world, digest(world.domain, order))
    evm.now += 5 + DEVNET.max_hold + DEVNET.case_evidence_age
    evm.send(SENDER.address, faults.demand_secret(order, signed))
    evm.now = evm.ask(faults.demand(job)).answer_by
    refused(evm, "early", BOSS.address, faults.punish_unanswered(job))
    evm.travel(1)
    refused(evm, "phase", BOSS.address, faults.answer_secret(job, SECRET_X))
    evm.send(BOSS.address, faults.punish_unanswered(job))
    assert lost(world) == PENALTY and evm.ask(faults.credit_of(SENDER.address)) == 2 * FEE
    assert frozen(world) == 0
    faults_money(world)


@pytest.mark.rule("5.14", "I5")
def test_demands_for_a_secret_that_are_refused(world: Market) -> None:
    faults, evm = world.contracts.faults, world.evm
    found = world.execution(key("owner0").address, key("client0"), expiry=evm.now + 5)
    order = found.shown.job.order.message
    signed = ack(world, digest(world.domain, order))
    other = ack(world, JOB)
    forged = ack(world, digest(world.domain, order), signer=key("stranger"))
    evm.now += 5 + DEVNET.max_hold + DEVNET.case_evidence_age
    refused(evm, "order", SENDER.address, faults.demand_secret(order, other))
    refused(evm, "ack", SENDER.address, faults.demand_secret(order, forged))
    evm.travel(1)
    refused(evm, "late", SENDER.address, faults.demand_secret(order, signed))
