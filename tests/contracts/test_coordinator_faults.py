"""Tests the fault that costs a coordinator its bond: two Acks for one job."""

import pytest

from contracts.evm import refused
from contracts.fault_evidence import SENDER, ack, faults_money, provers_market
from contracts.market import COORDINATOR, Market, key, market
from quorate_contracts.bindings.events import FaultProven
from quorate_contracts.bindings.faults import FaultKind
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
