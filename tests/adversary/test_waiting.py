"""Jobs that nobody runs: they end, cost nothing, and free their money."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import Ended, Matching
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import ASSIGNMENTS_MAX
from quorate_protocol.messages import frames, job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Assignment, Decline
from quorate_protocol.units import DeclineReason, UnixSeconds
from support.markets.scripted_market import DOMAIN, Market, Party

EXPIRES_SECONDS = 600  # of the scripted market's orders


class PostponingMarket(Market):
    """A market whose providers postpone every job."""

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        hashed = digest(DOMAIN, assignment)
        no = Decline(hashed, DeclineReason.BUSY, UnixSeconds(self.at + 1), UnixSeconds(self.at))
        self.send(ev.DeclineReceived(seal(DOMAIN, no, party.key.sign), party.key.address))


@pytest.mark.rule("4.44")
def test_a_job_that_no_provider_starts_ends_in_time_and_frees_its_money(attack) -> None:  # type: ignore[no-untyped-def]
    market = Market(Party(0))
    busy = market.order(0, 1, accept_unverified=True)
    market.pending.clear()
    account = market.clients[0].address
    job_id = market.order(0, 2, accept_unverified=True, start_within=30)
    assert isinstance(market.job(job_id).phase, Matching)
    reserved = market.core.state.clients[account].reserved
    market.parties[next(iter(market.parties))].is_deaf = True
    seconds = 0
    while not isinstance(market.job(job_id).phase, Ended):
        market.beat()
        seconds += 1
    ended = market.job(job_id).phase
    assert seconds == 30 and isinstance(ended, Ended) and "start_within" in ended.reason
    assert market.core.state.clients[account].reserved < reserved
    assert not market.core.state.clients[account].charged and busy
    attack(
        name="every provider of the class sits on its slots",
        before="a waiting job's money, until its order expires",
        now=f"{seconds} s, as its order says (10 min by default)",
        cost="all stake of the class",
    )


@pytest.mark.rule("4.45")
def test_a_job_gets_at_most_64_assignments(attack) -> None:  # type: ignore[no-untyped-def]
    market = PostponingMarket(*[Party(number) for number in range(12)])
    job_id = market.order(0, 1)
    while not isinstance(market.job(job_id).phase, Ended):
        market.beat()
    ended = market.job(job_id).phase
    assert isinstance(ended, Ended) and f"{ASSIGNMENTS_MAX} assignments" in ended.reason
    assert len(market.job(job_id).leases) == ASSIGNMENTS_MAX
    sent = [effect for effect in market.effects if isinstance(effect, Send)]
    assigned = [item for item in sent if isinstance(item.frame, frames.AssignmentSent)]
    assert len(assigned) == ASSIGNMENTS_MAX
    attack(
        name="a job that every provider postpones",
        before="an Assignment a second until its order expires, up to 30 days",
        now=f"{len(assigned)} Assignments, then it ends",
        cost="one order",
    )


@pytest.mark.rule("4.44")
def test_nobody_may_accept_a_first_execution_after_the_order_has_expired() -> None:
    market = Market(Party(0, is_deaf=True))
    job_id = market.order(0, 1, accept_unverified=True)
    expiry = market.job(job_id).submission.order.message.expiry
    while market.at < expiry:
        market.beat()
    for digest_ in market.job(job_id).leases:
        assert market.core.state.leases[digest_].assignment.message.accept_by < expiry
    assert isinstance(market.job(job_id).phase, Ended)
