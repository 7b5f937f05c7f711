"""Tests providers that accept an execution and later cannot do it.

Such a provider sends a Decline, so the coordinator does not wait until commitBy, which may be hours
away (PROTOCOL §4).
"""

import pytest

from quorate_coordinator.core.model.entities import Ended
from quorate_coordinator.core.model.lease import Lapsed, Revealed
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.units import DeclineReason, Hash32, JobKind, Sequence, VerifyTier
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, Market, Party


class MarketWithGivingUp(Market):
    """A market in which the providers with a number in `giving_up` accept and then give up."""

    slots = 8
    limit = 300
    giving_up: tuple[int, ...] = ()
    is_told = True  # whether they send the Decline
    reason = DeclineReason.GAVE_UP

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number not in self.giving_up:
            super()._run(party, assignment, spec)
            return
        hashed = digest(DOMAIN, assignment)
        self.accept(party, hashed)
        if self.is_told:
            self.gives_up(party, hashed)

    def primary(self, job_id: Hash32) -> Party:
        """Returns the provider that got the job first."""
        return self.parties[self.core.state.leases[self.job(job_id).leases[0]].provider]

    def gives_up(self, party: Party, lease: Hash32) -> None:
        self.decline(party, lease, self.reason, self.at + 5)


@pytest.mark.rule("4.9")
def test_a_primary_that_gives_up_is_replaced_at_once() -> None:
    """The Decline asks the coordinator to wait; the coordinator does not."""
    market = MarketWithGivingUp(*[Party(number) for number in range(5)])
    job_id = market.order(0, 3)
    market.giving_up = (market.primary(job_id).number,)
    market.until_decided(job_id, seconds=30)
    first, *others = (market.core.state.leases[item] for item in market.job(job_id).leases)
    assert first.phase == Lapsed(True, has_given_up=True) and all(
        isinstance(lease.phase, Revealed) for lease in others
    )
    owner = first.provider
    assert market.parties[owner] is market.primary(job_id)
    assert (
        not market.core.state.leases_in_slots.get(owner)
        and market.core.state.providers[owner].offer is not None
    )
    before = market.core.state
    market.gives_up(market.parties[owner], first.assignment_hash)
    assert (
        market.core.state is before and market.core.state.leases[first.assignment_hash] == first
    ), "said twice it is said once"


@pytest.mark.rule("4.9")
def test_an_auditor_that_gives_up_is_replaced_by_the_next_of_the_draw() -> None:
    market = MarketWithGivingUp(*[Party(number) for number in range(6)])
    job_id = market.order(0, 1)
    primary = market.primary(job_id)
    market.giving_up = tuple(
        party.number for party in market.parties.values() if party is not primary
    )[:2]
    market.until_decided(job_id, seconds=30)
    for number in range(2, 8):
        market.until_decided(market.order(0, number), seconds=30)
    drawn = [lease for lease in market.core.state.leases.values() if lease.batch or lease.index]
    assert sum(lease.phase == Lapsed(True, has_given_up=True) for lease in drawn) > 2, (
        "somebody who gives up was drawn"
    )
    assert all(provider.offer is not None for provider in market.core.state.providers.values()), (
        "it is a lapse, and no draw declined"
    )


@pytest.mark.rule("4.9")
def test_stopped_run_ends_when_its_provider_gives_up() -> None:
    market = MarketWithGivingUp(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.giving_up, market.is_told = (market.primary(job_id).number,), False
    market.deliver()
    (lease,) = market.job(job_id).leases
    market.stop(job_id)
    market.beat()
    assert not isinstance(market.job(job_id).phase, Ended), "it may have run for a while"
    market.gives_up(market.primary(job_id), lease)
    phase = market.job(job_id).phase
    assert isinstance(phase, Ended) and "stopped" in phase.reason
    assert market.client().reserved == 0


@pytest.mark.rule("4.46")
@pytest.mark.parametrize(("owners", "asked"), [(5, 3), (2, 2)])
def test_a_job_that_nobody_can_run_ends_without_a_charge(owners: int, asked: int) -> None:
    market = MarketWithGivingUp(*[Party(number) for number in range(owners)])
    market.giving_up, market.reason = tuple(range(owners)), DeclineReason.MISMATCH
    job_id = market.order(0, 1, accept_unverified=True)
    market.beats(30)
    job = market.job(job_id)
    assert isinstance(job.phase, Ended)
    assert job.phase.reason == (
        f"lapsed: declined by {asked} providers: {', '.join(['mismatch'] * asked)}"
    )
    client = market.client()
    assert len(job.leases) == asked and client.charged == client.reserved == 0


@pytest.mark.rule("4.46")
def test_a_job_that_is_not_started_in_time_names_the_declines() -> None:
    market = MarketWithGivingUp(*[Party(number) for number in range(5)])
    market.giving_up, market.reason = (0,), DeclineReason.IMAGE
    for party in market.parties.values():
        offer = market.core.state.providers[party.owner].offer
        if offer is not None and party.number:
            market.send_offer(party, replace(offer, seq=Sequence(2), kinds=(JobKind.SERVICE,)))
    job_id = market.order(0, 1, verify_tier=VerifyTier.NONE, accept_unverified=True, caseable=False)
    assert market.until(job_id, Ended, 3_700).reason == "lapsed: declined by 1 provider: image"


@pytest.mark.rule("4.46")
def test_one_owner_cannot_end_a_job_that_others_run() -> None:
    market = MarketWithGivingUp(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.giving_up, market.reason = (market.primary(job_id).number,), DeclineReason.MISMATCH
    market.until_decided(job_id, seconds=30)
