"""Tests orders that no witness countersigns: each is audited.

The order's premium pays that one extra execution (PROTOCOL §4).
"""

import dataclasses

import pytest

from quorate.cli import rendering
from quorate.trust.charge_verification import OwnRecord, check_receipt, none_witnessed
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.entities import AwaitingRound, Job
from quorate_protocol.codec import canonical
from quorate_protocol.crypto.hashing import hash_list
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.messages.signed import Witness
from quorate_protocol.messages.views import PlanView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Bps, Hash32, Label, Outcome, Small
from quorate_protocol.values import replace
from quorate_runtime.beacon.bls import verify_round as is_beacon_signature
from quorate_runtime.keys.crypto import recover
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import DOMAIN, STATEMENT

PAY = 1_000  # 36 s at 0.10 USD an hour
FEE = 20  # the premium of one execution


def decided(market: LargeMarket, job_id: Hash32) -> Job:
    market.until_decided(job_id)
    job = market.job(job_id)
    assert job.ack.message.rule is Label.ADAPTIVE and len(job.batches[0].members) == 2, (
        "a newcomer's, so it is audited"
    )
    return job


@pytest.mark.rule("4.22", "4.23")
def test_the_client_pays_the_audit_that_its_absence_causes() -> None:
    market = LargeMarket()
    split = decided(market, market.order(0, 1)).split
    assert [credit.amount for credit in split.credits] == [PAY, PAY] and split.fund == 0
    assert split.charged == 2 * PAY + 2 * FEE and market.core.state.own.fund_held == 0


@pytest.mark.rule("3.10", "4.21", "6.1")
def test_client_that_witnesses_or_accepts_no_witness_pays_the_premium() -> None:
    market = LargeMarket()
    accepted = market.order(0, 1, accept_unwitnessed=True)
    assert decided(market, accepted).split.charged == PAY + FEE + PAY * 500 // 10_000
    assert witnessed(market, 2).split.charged == PAY + FEE + PAY * 500 // 10_000


def test_a_witness_that_was_taken_and_is_left_out_of_the_receipt_costs_its_client_nothing() -> None:
    market = LargeMarket()
    witnessed(market, 1)
    found = canonical.decode(Receipt, market.receipts[-1])
    primary = found.executions[0].commit
    known = OwnRecord(
        found.order.message,
        found.ack.message,
        found.spec,
        DOMAIN,
        found.coordinator_key,
        found.beacon_key,
        found.timing,
        recover,
        is_beacon_signature,
        lambda assignment, commit: (
            (assignment, commit) == (primary.message.assignment_hash, primary.digest(DOMAIN))
        ),
    )
    for body in (found, replace(found, witness=None)):
        assert (
            check_receipt(known, document(body), found.verdict).charged
            == PAY + FEE + PAY * 500 // 10_000
        )
    assert (
        check_receipt(
            dataclasses.replace(known, has_witnessed=none_witnessed),
            document(replace(found, witness=None)),
            found.verdict,
        ).charged
        > 2 * PAY
    )


def test_a_receipt_without_a_batch_costs_nothing_and_is_read() -> None:
    market = LargeMarket()
    witnessed(market, 1)
    found = canonical.decode(Receipt, market.receipts[-1])
    said = replace(
        found.verdict.message,
        outcome=Outcome.LAPSED,
        batches=Small(0),
        group=(),
        faulted=(),
        evidence_hash=hash_list(()),
    )
    lapsed = replace(
        found,
        batches=(),
        beacons=(),
        executions=(),
        witness=None,
        slots=(),
        verdict=seal(DOMAIN, said, STATEMENT.sign),
        taken_from_chain=replace(found.taken_from_chain, parties=()),
    )
    order, ack = found.order.message, found.ack.message
    known = OwnRecord(
        order,
        ack,
        found.spec,
        DOMAIN,
        found.coordinator_key,
        found.beacon_key,
        found.timing,
        recover,
        is_beacon_signature,
    )
    assert check_receipt(known, document(lapsed), lapsed.verdict).charged == 0


def witnessed(market: LargeMarket, number: int) -> Job:
    """Returns a decided job that its client witnessed."""
    job_id = market.order(0, number)
    while not isinstance(phase := market.job(job_id).phase, AwaitingRound):
        market.beat()
    witness = Witness(market.job(job_id).commits[0], phase.round, market.at)  # type: ignore[arg-type]
    market.send(
        ev.WitnessReceived(
            seal(DOMAIN, witness, market.sessions[0].sign), market.sessions[0].address
        )
    )
    return decided(market, job_id)


@pytest.mark.rule("4.23")
def test_budget_covers_execution_and_audit() -> None:
    market = LargeMarket()
    one = 200_000 * 60 // 3_600  # the highest cost of a minute
    both = 2 * one + 2 * one * 200 // 10_000
    with pytest.raises(Refused) as refused:
        market.order(0, 1, budget=Amount(both - 1))
    assert refused.value.code is Code.BAD_AMOUNT
    market.order(0, 2, budget=Amount(both))
    market.order(0, 3, budget=Amount(both - 1), accept_unwitnessed=True)


@pytest.mark.rule("4.22")
def test_plan_shows_the_price_of_an_unwitnessed_order() -> None:
    view = PlanView(Hash32(bytes(32)), Label.ADAPTIVE, 9, 9, None, 2, Amount(1), Bps(200), "")
    assert "full audit" in rendering._priced(view, accepts_unwitnessed=False)
    assert "1 execution" in rendering._priced(
        view, accepts_unwitnessed=True
    ) and "audit" not in rendering._priced(view, accepts_unwitnessed=True)
