"""Tests fast orders: the beacon draws both executions of the first batch, before either starts."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Ended, Running
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import audit_draw
from quorate_protocol.rules.orders import is_fast
from quorate_protocol.units import (
    ZERO_HASH,
    DeclineReason,
    Hash32,
    Label,
    Outcome,
    Round,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, STATEMENT, Market, Party
from support.receipts import failures, verdict_again, with_batch
from support.refusals import refuses

FAST: dict[str, object] = {"verify_tier": VerifyTier.QUORUM_2_FAST}


def market_of(owners: int = 6, **changes: object) -> Market:
    market = Market(*[Party(number) for number in range(owners)])
    for name, value in changes.items():
        setattr(market, name, value)
    return market


def ordered(market: Market, nonce: int = 1, **changes: object) -> Hash32:
    """Orders, and the client countersigns the Ack."""
    job_id = market.order(0, nonce, **FAST, **changes)
    market.witness(job_id)
    return job_id


def drawn(market: Market, nonce: int = 1, **changes: object) -> Hash32:
    """The round appears too. Nobody has heard of an Assignment yet."""
    job_id = ordered(market, nonce, **changes)
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    market.at = market.core.rules.timing.appears_at(phase.round)
    market.appears(phase.round)
    return job_id


def asked(market: Market) -> list[tuple[Party, Assignment]]:
    found = [item for item in market.pending if isinstance(item.frame, frames.AssignmentSent)]
    return [(market.parties[it.peer], it.frame.assignment.message) for it in found]


def body_of(market: Market) -> Receipt:
    tree = canonical.parse(market.receipts[-1], 1 << 20)
    assert isinstance(tree, dict)
    return canonical.from_json(Receipt, tree)


@pytest.mark.rule("5.165", "5.166")
def test_both_executions_start_together_and_their_agreement_is_the_verdict() -> None:
    market = market_of()
    job_id = drawn(market)
    began, sent = market.at, asked(market)
    assert len(sent) == len({party.owner for party, _ in sent}) == 2
    market.deliver()
    market.beat()
    job, verdict = market.job(job_id), market.verdict(job_id)
    assert verdict.outcome is Outcome.ACCEPTED and verdict.label is Label.QUORUM_2
    assert market.at - began <= market.ran_ms // 1000 + 2, "the time of one run"
    assert set(verdict.group) == set(job.leases) and len(job.batches) == 1
    body = body_of(market)
    assert failures(body) == set()
    assert body.witness is not None and body.witness.message.commit_hash == ZERO_HASH
    assert len(job.split.credits) == 2 and job.split.fund > 0
    for party, _ in sent:
        trusts = market.core.state.trust[party.owner]
        assert [trust.passed for trust in trusts.by_class.values()] == [1]


@pytest.mark.rule("5.19", "5.166")
def test_neither_provider_can_tell_that_it_is_of_a_fast_job() -> None:
    market = market_of()
    drawn(market)
    (_, one), (_, other) = asked(market)
    same = {"assignment_id": one.assignment_id, "provider": one.provider}
    assert replace(other, **same) == one and one.assignment_id != other.assignment_id
    usual = market_of()
    usual.order(0, 1)
    usual.beat()
    found = [item.frame for item in usual.effects if isinstance(item, Send)]
    primary = next(it for it in found if isinstance(it, frames.AssignmentSent)).assignment.message
    varied = {"accept_by": primary.accept_by, "provider": primary.provider}
    assert replace(one, **varied, assignment_id=primary.assignment_id) == primary


@pytest.mark.rule("5.165")
def test_without_the_clients_witness_nobody_is_drawn_and_nothing_is_charged() -> None:
    market = market_of()
    job_id = market.order(0, 1, **FAST)
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    market.appears(phase.round)
    ended = market.job(job_id).phase
    assert isinstance(ended, Ended) and "did not countersign" in ended.reason
    assert not market.job(job_id).leases and not market.client().reserved


@pytest.mark.rule("5.165")
def test_the_witness_must_come_before_the_round() -> None:
    market = market_of()
    job_id = market.order(0, 1, **FAST)
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    newest = phase.round - 1
    assert market.core.rules.timing.appears_at(newest) > market.at, "2 periods ahead of the Ack"
    market.at = market.core.rules.timing.appears_at(phase.round)
    with refuses(Code.TOO_LATE):
        market.witness(job_id)


@pytest.mark.rule("5.165")
@pytest.mark.parametrize("changes", [{"ack_hash": Hash32(b"\7" * 32)}, {"beacon_round": Round(1)}])
def test_a_witness_of_another_ack_or_round_is_refused(changes: dict[str, object]) -> None:
    market = market_of()
    job_id = market.order(0, 1, **FAST)
    with pytest.raises(Refused):
        market.witness(job_id, **changes)
    with refuses(Code.WRONG_SIGNER):
        market.witness(job_id, market.sessions[1])


@pytest.mark.rule("5.166")
def test_the_next_try_fills_the_place_of_who_declines() -> None:
    market = market_of()
    job_id = drawn(market)
    (first, given), _ = asked(market)
    market.pending = [item for item in market.pending if item.peer != first.owner]
    market.decline(first, given, DeclineReason.PRICE)
    assert len({party.owner for party, _ in asked(market)} | {first.owner}) == 3
    market.deliver()
    market.beats(8)
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED
    body = body_of(market)
    assert failures(body) == set() and len(body.skips) == 1
    hidden = replace(body, skips=())
    assert failures(verdict_again(hidden, DOMAIN, STATEMENT.sign)) >= {"draw[0]", "hash:skips[0]"}


@pytest.mark.rule("5.166")
def test_a_busy_owner_is_asked_at_once_and_its_decline_counts_for_nothing() -> None:
    market = market_of(4)
    job_id = drawn(market)
    (first, given), _ = asked(market)
    market.pending = [item for item in market.pending if item.peer != first.owner]
    market.decline(first, given, DeclineReason.BUSY, market.at + 10)
    phase = market.job(job_id).phase
    assert isinstance(phase, Running) and len(phase.skipped) == 1 and len(phase.places) == 2
    market.deliver()
    market.beats(8)
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED
    trusts = market.core.state.trust.get(first.owner)
    assert trusts is None or trusts.availability() == (0, 0)


@pytest.mark.rule("5.166", "5.27")
def test_a_disagreement_goes_on_one_by_one() -> None:
    market = Market(*[Party(number, lies=number == 0) for number in range(3)])
    job_id = ordered(market)
    market.until_decided(job_id, seconds=200)
    body, verdict = body_of(market), market.verdict(job_id)
    assert failures(body) == set() and verdict.outcome is Outcome.ACCEPTED
    liar = next(party for party in market.parties.values() if party.lies)
    named = {item.commit.message.assignment_hash: item for item in body.executions}
    faulted = [named[name].assignment.message.provider for name in verdict.faulted]
    assert faulted in ([], [liar.owner])


@pytest.mark.rule("5.166")
def test_one_execution_alone_is_not_enough() -> None:
    market = market_of(3)
    for party in list(market.parties.values())[1:]:
        party.is_deaf = True
    job_id = ordered(market)
    market.until_decided(job_id, seconds=300)
    verdict, body = market.verdict(job_id), body_of(market)
    assert verdict.outcome is Outcome.CANNOT_VERIFY and failures(body) == set()
    assert len(body.batches[0].message.ordered) == 1 and not market.job(job_id).split.charged


@pytest.mark.rule("5.166")
def test_a_job_that_nobody_takes_ends_unpaid_and_is_not_drawn_again() -> None:
    market = market_of(3)
    for party in market.parties.values():
        party.is_deaf = True
    job_id = ordered(market)
    market.beats(30)
    ended = market.job(job_id).phase
    assert isinstance(ended, Ended) and not market.client().reserved
    acked = market.job(job_id).ack
    market.send(ev.OrderReceived(market.job(job_id).submission))
    assert market.job(job_id).phase == ended and market.job(job_id).ack == acked


@pytest.mark.rule("4.46", "5.166", "5.168")
def test_three_owners_that_cannot_run_it_end_a_fast_job_and_give_its_client_a_window() -> None:
    market = market_of(6)
    job_id = drawn(market)
    for _ in range(4):
        for party, given in asked(market):
            market.pending = [item for item in market.pending if item.peer != party.owner]
            if not isinstance(market.job(job_id).phase, Ended):
                market.decline(party, given, DeclineReason.INPUT_UNAVAILABLE)
    ended = market.job(job_id).phase
    assert isinstance(ended, Ended) and "declined by" in ended.reason
    with refuses(Code.BUSY, "speed"):
        market.order(0, 2, **FAST)


@pytest.mark.rule("5.167")
def test_a_stop_is_paid_for_the_elapsed_time_of_both() -> None:
    market = market_of(ran_ms=20_000)
    job_id = drawn(market)
    for party, given in asked(market):
        market.accept(party, digest(DOMAIN, given))
    before = market.client().reserved
    market.stop(job_id)
    assert market.client().reserved < before
    market.ran_ms = 4_000
    for item in list(market.pending):
        if isinstance(item.frame, frames.AssignmentSent):
            market.pending.remove(item)
            assignment, spec = item.frame.assignment.message, item.frame.spec
            market._run(market.parties[item.peer], assignment, spec)
    market.deliver()
    market.beat()
    verdict, body = market.verdict(job_id), body_of(market)
    assert verdict.outcome is Outcome.LAPSED and failures(body) == set()
    assert [credit.amount for credit in market.job(job_id).split.credits] == [111, 111]


@pytest.mark.rule("5.167")
@pytest.mark.parametrize("is_drawn", [False, True])
def test_a_stop_before_an_accept_costs_nothing(is_drawn: bool) -> None:
    market = market_of()
    job_id = drawn(market) if is_drawn else ordered(market)
    market.stop(job_id)
    assert isinstance(market.job(job_id).phase, Ended) and not market.client().reserved


@pytest.mark.rule("5.167")
def test_of_a_stopped_job_one_execution_may_be_left() -> None:
    market = market_of(ran_ms=4_000)
    job_id = drawn(market)
    (first, given), (other, lost) = asked(market)
    market.accept(first, digest(DOMAIN, given))
    market.accept(other, digest(DOMAIN, lost))
    market.stop(job_id)
    market.decline(other, lost, DeclineReason.GAVE_UP)
    item = next(it for it in market.pending if it.peer == first.owner)
    assert isinstance(item.frame, frames.AssignmentSent)
    market.pending = []
    market._run(first, given, item.frame.spec)
    market.deliver()
    market.beat()
    assert market.verdict(job_id).outcome is Outcome.LAPSED
    assert failures(body_of(market)) == set()


@pytest.mark.rule("5.168")
def test_an_order_whose_content_is_missing_cannot_be_fast() -> None:
    market = market_of()
    with refuses(Code.UNSUPPORTED, "speed"):
        market.order(0, 1, lacks_content=True, **FAST)


@pytest.mark.rule("5.21", "5.165")
def test_a_missing_round_ends_a_fast_job_unpaid() -> None:
    market = market_of()
    job_id = ordered(market)
    market.at += market.core.rules.limits.beacon_missing_after + 10
    market.send(ev.Tick())
    assert isinstance(market.job(job_id).phase, Ended)


# ---------------------------------------------------------------------- what a stranger refuses


def decided() -> tuple[Market, Receipt]:
    market = market_of()
    job_id = drawn(market)
    market.deliver()
    market.beat()
    assert isinstance(market.job(job_id).phase, Decided)
    return market, body_of(market)


@pytest.mark.rule("5.165", "7.12")
@pytest.mark.parametrize("later", [-2, -1, 1, 4])
def test_another_round_is_refused(later: int) -> None:
    _, body = decided()
    wrong = Round(body.batches[0].message.beacon_round + later)
    assert "round[0]" in failures(with_batch(body, beacon_round=wrong))


@pytest.mark.rule("5.165", "7.12")
def test_a_receipt_without_the_witness_is_refused() -> None:
    _, body = decided()
    without = with_batch(replace(body, witness=None), witness_hash=ZERO_HASH)
    assert "witness:fast" in failures(without)


@pytest.mark.rule("5.101", "5.165")
def test_an_ack_that_the_client_did_not_see_is_refused() -> None:
    """The coordinator signs a second Ack once it knows the beacon, with a secret of its choice."""
    _, body = decided()
    later = replace(body.ack.message, ack_time=UnixSeconds(body.ack.message.ack_time - 1))
    forged = replace(body, ack=seal(DOMAIN, later, STATEMENT.sign))
    assert "witness:ack" in failures(verdict_again(forged, DOMAIN, STATEMENT.sign))


@pytest.mark.rule("5.166", "7.12")
def test_the_order_of_the_executions_is_the_draws() -> None:
    _, body = decided()
    message = body.batches[0].message
    chain = body.taken_from_chain
    turned = replace(
        body,
        executions=body.executions[::-1],
        taken_from_chain=replace(chain, parties=chain.parties[::-1]),
    )
    swapped = with_batch(
        turned,
        ordered=message.ordered[::-1],
        blinds=message.blinds[::-1],
        slots=message.slots[::-1],
    )
    assert "tries[0]" in failures(swapped)


@pytest.mark.rule("5.166", "7.12")
def test_a_matched_first_execution_is_refused() -> None:
    """The coordinator chooses one of the two, as it does for other orders."""
    market = market_of()
    market.until_decided(market.order(0, 1))
    body = body_of(market)
    order = replace(body.order.message, **FAST)
    assert is_fast(order, Label.QUORUM_2)
    forged = replace(body, order=replace(body.order, message=order))
    found = failures(verdict_again(forged, DOMAIN, STATEMENT.sign))
    assert {"draw[0]", "witness:fast", "round[0]"} <= found


@pytest.mark.rule("5.118")
def test_more_than_two_silent_owners_end_the_draw() -> None:
    market = market_of(9)
    for party in list(market.parties.values())[1:]:
        party.is_deaf = True
    job_id = ordered(market)
    market.beats(40)
    job = market.job(job_id)
    silent = len(job.leases)
    assert isinstance(job.phase, Ended | Decided | AwaitingRound | Running)
    first = [item for item in job.leases if market.core.state.leases[item].batch == 0]
    assert len(first) <= audit_draw.SILENT_SKIPS_MAX + 3, f"{silent} were asked"
