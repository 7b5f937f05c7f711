"""Tests which beacon round draws a job's auditors (I9).

As far as the coordinator can know, nobody knew that round when the results were committed.
"""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Ended
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.beacon_rounds import round_at, round_time
from quorate_protocol.refusals import Code
from quorate_protocol.units import Hash32, Outcome, Round, Seconds
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import INFO, Market, Party
from support.receipts import failures
from support.refusals import refuses


def _awaited(market: Market, job_id: Hash32) -> Round:
    market.deliver()
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    return phase.round


def test_late_clock_does_not_draw_by_a_round_that_was_seen() -> None:
    """The primary names a round that is ahead of the coordinator's clock and has already appeared.
    The beacon is then the better clock.
    """
    market = Market(*[Party(number) for number in range(6)])
    seen = _awaited(market, market.order(0, 1))
    assert seen > round_at(INFO, market.at), "ahead of the clock"
    market.appears(seen)
    assert _awaited(market, market.order(1, 1)) > seen


@pytest.mark.rule("5.10")
def test_round_that_no_job_waits_for_is_not_used_as_a_clock() -> None:
    """The coordinator asks for rounds by number, so no round that it asked for lies far ahead."""
    market = Market(*[Party(number) for number in range(6)])
    market.appears(Round(round_at(INFO, market.at) + 1_000))
    assert _awaited(market, market.order(0, 1)) <= round_at(INFO, market.at) + 10


@pytest.mark.rule("5.11")
@pytest.mark.parametrize("early", [1, 0])
def test_a_witness_comes_before_its_round_appears(early: int) -> None:
    """The coordinator's clock decides too. While it still fetches the round, a client that knows
    the round could countersign only a draw that it likes.
    """
    market = Market(*[Party(number) for number in range(6)])
    job_id = market.order(0, 1)
    number = _awaited(market, job_id)
    market.at = round_time(INFO, number) - early
    if early:
        assert market.witness(job_id) == market.job(job_id).witness
        return
    with refuses(Code.TOO_LATE):
        market.witness(job_id)
    assert market.job(job_id).witness is None


def _passes(market: Market, seconds: int) -> None:
    """Lets time pass while the beacon is away."""
    for _ in range(seconds):
        market.at += 1
        market.send(ev.Tick())
        market.deliver()


@pytest.mark.rule("5.21")
@pytest.mark.parametrize("is_stopped_late", [False, True])
def test_a_job_can_be_stopped_while_the_beacon_is_away(is_stopped_late: bool) -> None:
    """Its primary gets the elapsed time, and the receipt is the one of a stopped job."""
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    number = _awaited(market, job_id)
    missing = round_time(INFO, number) + DEVNET.beacon_missing_after - market.at
    if not is_stopped_late:
        market.stop(job_id)
        _passes(market, missing - 1)
        assert isinstance(market.job(job_id).phase, AwaitingRound), "the round may still come"
    else:
        _passes(market, missing + 5)
        market.stop(job_id)
    _passes(market, 3)
    job = market.job(job_id)
    assert isinstance(job.phase, Decided)
    assert job.phase.verdict.message.outcome is Outcome.LAPSED
    assert job.split.charged > 0 and sum(map(market.earned, market.parties)) > 0
    assert market.receipts and not market.core.state.live


@pytest.mark.rule("5.21")
def test_a_job_ends_at_its_expiry_while_the_beacon_is_away() -> None:
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    _awaited(market, job_id)
    expiry = market.job(job_id).submission.order.message.expiry
    _passes(market, expiry - market.at - 1)
    assert isinstance(market.job(job_id).phase, AwaitingRound)
    _passes(market, 1)
    assert isinstance(market.job(job_id).phase, Ended)
    client = market.client()
    assert not client.reserved and not client.charged and not market.core.state.live


@pytest.mark.rule("5.21", "5.36")
@pytest.mark.parametrize("hold", [DEVNET.max_hold, 2 * DEVNET.beacon_missing_after])
def test_a_job_that_waits_for_a_later_draw_ends_while_the_beacon_is_away(hold: int) -> None:
    """Its owners are paid by the fund, as if nobody was left to ask, and nobody is faulted."""
    market = Market(*[Party(number, lies=True) for number in range(5)])
    limits = replace(DEVNET, max_hold=Seconds(hold))
    market.core.rules = replace(market.core.rules, limits=limits)
    job_id = market.order(0, 1)
    while not (isinstance(phase := market.job(job_id).phase, AwaitingRound) and phase.batch):
        market.beat()
    late = round_time(INFO, phase.round) + max(limits.beacon_missing_after, limits.max_hold)
    _passes(market, late - market.at - 1)
    assert isinstance(market.job(job_id).phase, AwaitingRound)
    _passes(market, 1)
    job = market.job(job_id)
    assert isinstance(job.phase, Decided) and not job.split.charged
    assert job.phase.verdict.message.outcome is Outcome.UNRESOLVED
    assert not market.core.state.faults and not market.core.state.live
    assert not failures(market.receipt())


@pytest.mark.rule("5.21", "5.111")
def test_held_pay_becomes_final_while_the_beacon_is_away() -> None:
    market = LargeMarket()
    first = market.order(0, 1, accept_unwitnessed=True)
    market.trust_all(market.job(first))
    market.until_decided(first)
    for number in range(2, 20):
        job_id = market.order(0, number, accept_unwitnessed=True)
        market.until_decided(job_id)
        if job_id in market.core.state.held:
            break
    [credit], phase = market.job(job_id).split.credits, market.job(job_id).phase
    assert isinstance(phase, Decided)
    owner = market.core.state.leases[credit.assignment_hash].provider
    before = market.payee(owner)
    for wait in (0, market.core.rules.limits.max_hold + 600):
        market.at = phase.hold_until + wait
        _passes(market, 1)
    after = market.payee(owner)
    assert after.final - before.final == before.held - after.held >= credit.amount > 0
    assert not market.core.state.held and not market.core.state.live
    assert not failures(market.receipt())
