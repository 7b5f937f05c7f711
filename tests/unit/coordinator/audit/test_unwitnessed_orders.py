"""Tests orders that no witness countersigns: each is audited.

The order's premium pays that one extra execution (PROTOCOL §4).
"""

import dataclasses

import pytest

from quorate.base.errors import EvidenceError
from quorate.cli import rendering
from quorate.trust.charge_verification import check_receipt, none_witnessed
from quorate_coordinator.core.model.entities import AwaitingRound, Job
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import document
from quorate_protocol.messages.views import PlanView
from quorate_protocol.refusals import Code
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Amount,
    Bps,
    Hash32,
    Label,
    Outcome,
    Price,
    Small,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.bls import verify_round as is_beacon_signature
from quorate_runtime.keys.crypto import recover
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import DOMAIN, STATEMENT
from support.receipt_readers import own_record
from support.receipts import verdict_again
from support.refusals import refuses

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


@pytest.mark.rule("3.10", "4.21")
def test_client_that_witnesses_or_accepts_no_witness_pays_the_premium() -> None:
    market = LargeMarket()
    accepted = market.order(0, 1, accept_unwitnessed=True)
    assert decided(market, accepted).split.charged == PAY + FEE + PAY * 500 // 10_000
    assert witnessed(market, 2).split.charged == PAY + FEE + PAY * 500 // 10_000


def test_a_witness_that_was_taken_and_is_left_out_is_refused_by_its_client() -> None:
    """The coordinator signs a CommitSet without the witness. A stranger cannot see what is missing.
    The client can, and signs no voucher for the charge.
    """
    market = LargeMarket()
    witnessed(market, 1)
    found = market.receipt()
    primary = found.executions[0].commit
    witnessed_commit = (primary.message.assignment_hash, primary.digest(DOMAIN))
    known = own_record(market, found, lambda *commit: commit == witnessed_commit)
    assert (
        check_receipt(known, document(found), found.verdict).charged
        == PAY + FEE + PAY * 500 // 10_000
    )
    with pytest.raises(EvidenceError, match="witness:set"):
        check_receipt(known, document(replace(found, witness=None)), found.verdict)
    first, *later = (replace(batch.message, audit_ppm=PPM_ONE) for batch in found.batches)
    sets = (replace(first, witness_hash=ZERO_HASH), *later)
    batches = tuple(seal(DOMAIN, each, STATEMENT.sign) for each in sets)
    dropped = replace(found, witness=None, batches=batches)
    dropped = verdict_again(dropped, DOMAIN, STATEMENT.sign)
    with pytest.raises(EvidenceError, match="the coordinator took our witness"):
        check_receipt(known, document(dropped), dropped.verdict)
    stranger = dataclasses.replace(known, has_witnessed=none_witnessed)
    assert check_receipt(stranger, document(dropped), dropped.verdict).charged > 2 * PAY


def test_a_receipt_without_a_batch_is_refused() -> None:
    """The coordinator ends a job that nobody ran without a verdict."""
    market = LargeMarket()
    witnessed(market, 1)
    found = market.receipt()
    lapsed = verdict_again(
        replace(
            found,
            batches=(),
            beacons=(),
            executions=(),
            witness=None,
            slots=(),
            taken_from_chain=replace(found.taken_from_chain, parties=()),
        ),
        DOMAIN,
        STATEMENT.sign,
        outcome=Outcome.LAPSED,
        batches=Small(0),
        group=(),
        faulted=(),
    )
    report = receipt_checks.verify(document(lapsed), recover, is_beacon_signature)
    assert not report.valid


def witnessed(market: LargeMarket, number: int) -> Job:
    """Returns a decided job that its client witnessed."""
    job_id = market.order(0, number)
    market.until(job_id, AwaitingRound)
    market.witness(job_id)
    return decided(market, job_id)


@pytest.mark.rule("4.50")
def test_budget_covers_three_executions() -> None:
    market = LargeMarket()
    one = 200_000 * 60 // 3_600  # the highest cost of a minute
    three = 3 * one + 3 * one * 200 // 10_000
    for accepts in (False, True):
        with refuses(Code.BAD_AMOUNT, "3 executions"):
            market.order(0, 1, budget=Amount(three - 1), accept_unwitnessed=accepts)
        market.order(0, 2 + accepts, budget=Amount(three), accept_unwitnessed=accepts)


@pytest.mark.rule("4.22")
def test_plan_shows_the_price_of_an_unwitnessed_order() -> None:
    view = PlanView(
        Hash32(bytes(32)), Label.ADAPTIVE, 9, 9, None, Price(0), 2, Amount(1), Bps(200), "", ""
    )
    assert "full audit" in rendering._priced(view, False, 7)
    witnessed = rendering._priced(view, True, 7)
    assert "1 execution" in witnessed and "audit" not in witnessed
