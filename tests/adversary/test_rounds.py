"""Attacks on the draw: a party that knows a beacon round and then chooses."""

import pytest

from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Revealing
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32, UnixSeconds
from quorate_runtime.keys.bls import sign_round
from support.markets.scripted_market import BLS, Market, Party


def _drawn(market: Market, nonce: int) -> Hash32:
    """Orders a job, and lets the round appear that draws its auditor. No second passes."""
    job_id = market.order(nonce % 2, nonce)
    market.deliver()
    phase = market.job(job_id).phase
    assert isinstance(phase, AwaitingRound)
    signature = sign_round(BLS, phase.round)
    market.send(ev.RoundAppeared(phase.round, signature, sha256(signature)))
    market.deliver()
    return job_id


@pytest.mark.rule("I9", "4.5", "5.27")
def test_a_provider_cannot_wait_for_the_next_round_before_it_reveals(attack) -> None:  # type: ignore[no-untyped-def]
    """The coordinator's clock stands still, because it was put back. The beacon goes on, and the
    provider sees whom the next round would draw.
    """
    market = Market(*[Party(number) for number in range(6)])
    market.ran_ms = 0
    for party in market.parties.values():
        party.is_mute = True
    job = market.job(_drawn(market, 1))
    assert isinstance(job.phase, Revealing)
    members, closed_at = job.phase.batch.members, job.phase.batch.commit_set.message.closed_at
    reveals = {
        lease: party.commits[lease]
        for party in market.parties.values()
        for lease in members
        if lease in party.commits
    }
    market.send(ev.RevealReceived(reveals[members[0]], has_opened=True))
    next_round = market.core.rules.timing.later_round(closed_at)
    context = StepContext(market.core.state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)
    for nonce in range(2, 12):
        if beacon_time.newest_round(context) >= next_round:
            break
        _drawn(market, nonce)
    assert beacon_time.newest_round(context) >= next_round and market.at < closed_at + 6
    with pytest.raises(Refused) as caught:
        market.send(ev.RevealReceived(reveals[members[1]], has_opened=True))
    assert caught.value.code is Code.TOO_LATE
    attack(
        name="a reveal held back until the next round is known, beside a coordinator's late clock",
        before="the reveal counted: the provider chose whether that round draws auditors",
        now=f"refused ({caught.value.code.value}) once a round after revealBy was seen",
        cost="the pay of the execution, and a fault",
    )
