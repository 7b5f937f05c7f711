"""Tests which beacon round draws a job's auditors (I9).

As far as the coordinator can know, nobody knew that round when the results were committed.
"""

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core.entities import AwaitingRound
from quorate_protocol.crypto.hashing import sha256
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Witness
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.beacon_rounds import round_at, round_time
from quorate_protocol.units import Hash32, Round, UnixSeconds
from quorate_runtime.beacon.bls import sign_round
from support.markets.scripted_market import BLS, DOMAIN, INFO, Market, Party


def _awaited(market: Market, job_id: Hash32) -> Round:
    market.deliver()
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    return phase.round


def _appears(market: Market, number: Round) -> None:
    signature = sign_round(BLS, number)
    market.send(ev.RoundAppeared(number, signature, sha256(signature)))


def test_late_clock_does_not_draw_by_a_round_that_was_seen() -> None:
    """The primary names a round that is ahead of the coordinator's clock and has already appeared.
    The beacon is then the better clock.
    """
    market = Market(*[Party(number) for number in range(6)])
    seen = _awaited(market, market.order(0, 1))
    assert seen > round_at(INFO, market.at), "ahead of the clock"
    _appears(market, seen)
    assert _awaited(market, market.order(1, 1)) > seen


@pytest.mark.rule("5.10")
def test_round_that_no_job_waits_for_is_not_used_as_a_clock() -> None:
    """The coordinator asks for rounds by number, so no round that it asked for lies far ahead."""
    market = Market(*[Party(number) for number in range(6)])
    _appears(market, Round(round_at(INFO, market.at) + 1_000))
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
    (commit_hash,) = market.job(job_id).commits
    market.at = round_time(INFO, number) - early
    message = Witness(
        commit_hash, market.job(job_id).ack.digest(DOMAIN), number, UnixSeconds(market.at)
    )
    event = ev.WitnessReceived(
        seal(DOMAIN, message, market.sessions[0].sign), market.sessions[0].address
    )
    if early:
        market.send(event)
        assert market.job(job_id).witness == event.witness
        return
    with pytest.raises(Refused) as refused:
        market.send(event)
    assert refused.value.code is Code.TOO_LATE and market.job(job_id).witness is None
