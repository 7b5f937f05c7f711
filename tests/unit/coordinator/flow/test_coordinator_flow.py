"""Drives the coordinator's core with scripted providers and clients in virtual time.

The tests cover whole jobs, a liar, silent providers, and money.
"""

import pytest

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease
from quorate_coordinator.core.model.effects import OpenCase
from quorate_coordinator.core.model.entities import Matching
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import document
from quorate_protocol.messages.signed import Commit
from quorate_protocol.refusals import Code
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    DeclineReason,
    Label,
    Milliseconds,
    Outcome,
    Price,
    Round,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import DOMAIN, Market, Party
from support.refusals import refuses


@pytest.fixture
def market() -> Market:
    return Market(*[Party(i) for i in range(5)])


@pytest.mark.rule("I3", "4.16", "4.22", "5.39", "5.41")
def test_two_agree_and_are_paid(market: Market) -> None:
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    market.beat()
    verdict = market.verdict(job_id)
    assert verdict.outcome is Outcome.ACCEPTED and verdict.label is Label.QUORUM_2
    assert len(verdict.group) == 2 and not verdict.faulted
    state = market.core.state
    # 36 s at 0.1 USD/h = 1000 micro-USD each, fee 2 %.
    assert sorted(payee.final for payee in state.payees.values()) == [0, 0, 0, 1000, 1000]
    assert state.clients[market.clients[0].address].charged == 2040
    # A tenth of the fee goes to the audit fund.
    assert (
        state.own.fee == 36
        and state.own.fund == 4
        and state.clients[market.clients[0].address].reserved == 0
    )


@pytest.mark.rule("5.157")
def test_liar_is_outvoted_struck_and_taken_to_court() -> None:
    market = Market(Party(0, lies=True), *[Party(i) for i in range(1, 5)])
    market.ran_ms = 0
    liar = next(iter(market.parties))
    first, second = market.order(0, 1), market.order(1, 2)
    market.until_decided(first, second)
    for _ in range(40):
        if any(isinstance(effect, OpenCase) for effect in market.chain):
            break
        # one after the other, because the cheapest provider has a single slot
        for client in range(2):
            market.until_decided(market.order(client, 100 + market.steps))
    case = next(effect for effect in market.chain if isinstance(effect, OpenCase))
    evidence = case.execution
    assert evidence.run.assignment.message.provider == liar
    assert evidence.contradiction.assignment.message.provider != liar
    assert not market.earned(liar)


def test_receipt_verifies_and_every_flip_is_found(market: Market) -> None:
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    data = document(market.receipt())
    report = receipt_checks.verify(data, recover, verify_round)
    assert report.valid, report.failures
    for position in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[position] ^= 1
        assert not receipt_checks.verify(bytes(flipped), recover, verify_round).valid, position


@pytest.mark.rule("I4", "4.7", "4.10")
def test_provider_that_receives_no_frames_costs_nobody_anything() -> None:
    market = Market(Party(0, is_deaf=True), *[Party(i) for i in range(1, 5)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED


@pytest.mark.rule("5.54")
def test_batch_member_that_never_reveals_is_faulted() -> None:
    market = Market(Party(0, is_mute=True), *[Party(i) for i in range(1, 4)])
    for nonce in range(6):
        market.until_decided(market.order(0, nonce))
    mute = next(iter(market.parties))
    assert not market.payee(mute).final
    assert market.core.state.faults.get(mute)


@pytest.mark.rule("I10")
def test_replay_gives_the_same_state(market: Market) -> None:
    market.until_decided(market.order(0, 1), market.order(1, 2))
    again = CoordinatorCore(market.core.rules)
    for item in market.log:
        again.step(item)
    assert again.snapshot() == market.core.snapshot()
    restored = CoordinatorCore(market.core.rules)
    restored.restore(market.core.snapshot())
    assert restored.snapshot() == market.core.snapshot()


@pytest.mark.rule("5.154")
def test_second_commit_is_refused_as_equivocation(market: Market) -> None:
    market.order(0, 1)
    market.deliver()
    held = next(iter(market.core.state.leases.values()))
    assert isinstance(held.phase, lease.Committed)
    party = market.parties[held.provider]
    other = Commit(
        held.assignment_hash,
        lease.class_of(held),
        keccak256(b"other"),
        ZERO_HASH,
        Milliseconds(1),
        Round(0),
    )
    with refuses(Code.EQUIVOCATION):
        market.send(
            ev.CommitReceived(
                seal(DOMAIN, other, party.key.sign), party.key.address, is_stored=True
            )
        )


@pytest.mark.rule("I4")
def test_order_beyond_what_is_locked_is_refused(market: Market) -> None:
    with refuses(Code.INSUFFICIENT_FUNDS):
        market.order(0, 1, max_price_per_hour=Price(2_000_000_000), budget=Amount(2**90))
    market.order(0, 2)
    with refuses(Code.REPLAYED):
        market.order(0, 2, budget=Amount(999_999))


@pytest.mark.rule("3.12", "4.2")
def test_busy_primary_is_matched_again(market: Market) -> None:
    job_id = market.order(0, 1)
    assignment = market.pending.pop().frame.assignment.message  # type: ignore[union-attr]
    party = market.parties[assignment.provider]
    market.decline(party, assignment, DeclineReason.BUSY, market.at + 5)
    assert isinstance(market.job(job_id).phase, Matching)
    market.until_decided(job_id)


def test_witness_counts_only_before_its_round(market: Market) -> None:
    job_id = market.order(0, 1)
    market.deliver()
    signed = market.witness(job_id)
    assert market.job(job_id).witness == signed
    market.until_decided(job_id)
    again = ev.WitnessReceived(signed, market.sessions[0].address)
    market.send(again)
    late = seal(DOMAIN, replace(signed.message, time=market.at), market.sessions[0].sign)
    with refuses(Code.TOO_LATE):
        market.send(replace(again, witness=late))
