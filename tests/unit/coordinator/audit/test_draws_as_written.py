"""Tests draws and the effects of faults in markets large enough for the adaptive audit rate.

The rules are in PROTOCOL §5, Draw and Faults.
"""

import pytest

from quorate_coordinator.core.audit import faults, summaries
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect, Send
from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Job
from quorate_coordinator.core.model.lease import Lapsed
from quorate_coordinator.core.money import held_pay
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules import audit_draw
from quorate_protocol.units import PPM_ONE, ZERO_HASH, Address, BlockNumber, Hash32, UnixSeconds
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import CPUS, Market, Party


@pytest.mark.rule("5.17")
def test_one_owner_is_drawn_at_most_once() -> None:
    """Two slots of one owner count as one, even if payout or network changed between them."""
    owner = Address(b"\x01" * 20)

    def slot(index: int) -> StakeSlot:
        return StakeSlot(
            index,
            owner,
            owner,
            Address(bytes([index + 2]) * 20),
            Hash32(bytes([index]) * 32),
            BlockNumber(1),
        )

    assert list(audit_draw.draw(ZERO_HASH, 2, {1: slot(1)}, [slot(0)])) == []
    found = list(audit_draw.draw(ZERO_HASH, 2, {0: slot(0), 1: slot(1)}, []))
    assert len(found) == 1


def trusted() -> LargeMarket:
    """A market whose owners are audited in one job of twenty."""
    market = LargeMarket()
    first = market.order(0, 1, accept_unwitnessed=True)
    market.trust_all(market.job(first))
    market.until_decided(first)
    return market


def ended(market: LargeMarket, number: int, is_unwitnessed_accepted: bool) -> Job:
    job_id = market.order(0, number, accept_unwitnessed=is_unwitnessed_accepted)
    market.until_decided(job_id)
    return market.job(job_id)


@pytest.mark.rule("5.12")
def test_unwitnessed_job_is_audited_even_if_its_provider_is_trusted() -> None:
    market = trusted()
    for number in range(2, 8):
        job = ended(market, number, is_unwitnessed_accepted=False)
        (batch,) = job.batches
        assert batch.commit_set.message.audit_ppm == PPM_ONE and len(batch.members) == 2
    rates = {
        ended(market, number, is_unwitnessed_accepted=True).batches[0].commit_set.message.audit_ppm
        for number in range(8, 12)
    }
    assert max(rates) < PPM_ONE // 5, "and who accepts it is audited by its provider's record"


@pytest.mark.rule("5.55", "5.56")
def test_a_primary_that_is_faulted_has_its_held_jobs_executed_again() -> None:
    market = trusted()
    owner, jobs = next(iter(market.parties)), []
    for number in range(2, 80):
        market.until_decided(market.order(number % 2, number, accept_unwitnessed=True))
        context = market.context()
        for owner in market.parties:
            jobs = held_pay.held_jobs_of(context, owner)
            if len(jobs) > 2:
                break
        if len(jobs) > 2:
            break
    assert len(jobs) > 2
    faulty, others = jobs[0], jobs[1:]
    lease = market.core.state.leases[faulty.batches[0].members[0]]
    with market.core.state.transaction():
        before = market.core.state.trust[owner]
        del market.core.state.held[faulty.id]
        assert isinstance(faulty.phase, Decided)
        found = faulty.phase.verdict.message
        found = replace(found, group=(), faulted=(lease.assignment_hash,), time=context.at)
        summaries.append(context, faulty, found, [lease], is_again=False)
        faults.judge(context, faulty, [lease], [lease])
    assert all(isinstance(market.job(job.id).phase, AwaitingRound) for job in others), (
        "each is drawn for once more"
    )
    (after,) = market.core.state.trust[owner].by_class.values()
    (known,) = before.by_class.values()
    assert known.passed > 0 == after.passed and after.strikes == (market.at,), "k = 0, and a strike"


@pytest.mark.rule("5.90")
def test_provider_without_open_slots_gets_no_assignment_from_an_older_list() -> None:
    """The list is older than the closing of its slots, so the provider is still drawn. The receipt
    records that it was skipped.
    """
    market = Market(*[Party(number) for number in range(4)])
    job_id = market.order(0, 1)
    market.deliver()
    (primary,) = [lease.provider for lease in market.core.state.leases.values()]
    staying = next(owner for owner in market.parties if owner != primary)
    owners, closed = list(market.parties), BlockNumber(market.next_block + 1)
    left = [owner for owner in owners if owner not in (primary, staying)]
    market.chain_says(*(ev.ChainSlotClosed(CPUS.id(), owners.index(it), closed) for it in left))
    market.chain_says()
    market.until_decided(job_id)
    asked = {
        lease.provider
        for lease in market.core.state.leases.values()
        if lease.phase != Lapsed(was_accepted=False, is_excused=True)
    }
    assert asked == {primary, staying}


@pytest.mark.rule("5.24")
def test_undelivered_commit_set_is_signed_again_with_a_new_reveal_time() -> None:
    """Only closedAt changes, so a provider that receives only the second CommitSet is not late."""
    market = MarketWithLateCommitSets(*[Party(number) for number in range(4)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    first, second = market.seen[0], market.seen[-1]
    assert (
        second.closed_at > first.closed_at + DEVNET.beacon_period
        and replace(second, closed_at=first.closed_at) == first
    )
    verdict = market.verdict(job_id)
    assert len(verdict.group) == 2 and not verdict.faulted


class MarketWithLateCommitSets(Market):
    """A market that drops every CommitSet until the coordinator has signed it twice.

    Each provider then reveals at the last moment.
    """

    def __init__(self, *parties: Party) -> None:
        self.seen: list[CommitSet] = []
        super().__init__(*parties)

    def _perform(self, effect: Effect) -> None:
        frame = effect.frame if isinstance(effect, Send) else None
        if isinstance(frame, frames.CommitSetSent):
            self.seen.append(frame.commit_set.message)
            if self.seen[0].closed_at == frame.commit_set.message.closed_at:
                return
            self.at = UnixSeconds(max(self.at, frame.commit_set.message.closed_at))
        super()._perform(effect)
