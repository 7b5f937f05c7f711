"""Tests that a provider that gives up too much of its recent work is off offer for a while.

Without this rule a provider could choose which jobs it audits (PROTOCOL §4, I9).
"""

import pytest

from quorate_coordinator.core import events as ev
from quorate_coordinator.core import views
from quorate_coordinator.core.audit import reliability
from quorate_coordinator.core.audit.reliability import ANSWERS_LEAST
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.crypto.eip712 import digest
from quorate_protocol.crypto.hashing import hash_list
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, Offer, OfferEnvelope, validate
from quorate_protocol.messages.signed import Assignment, Decline
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, DeclineReason, Price, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import DOMAIN, HOST, Market, Party


class DecliningMarket(Market):
    """A market whose first provider declines each draw and runs each job that it is matched
    with.
    """

    slots = 8
    reason = DeclineReason.DRAINING
    ahead = 0  # the Decline asks to wait for this many seconds; 0 for no wait
    declined = 0

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        hashed = digest(DOMAIN, assignment)
        if party.number or not self.core.state.leases[hashed].index:
            super()._run(party, assignment, spec)
            return
        self.declined += 1
        start_by = UnixSeconds(self.at + self.ahead if self.ahead else 0)
        decline = Decline(hashed, self.reason, start_by, UnixSeconds(self.at))
        self.send(ev.DeclineReceived(seal(DOMAIN, decline, party.key.sign), party.key.address))

    @property
    def decliner(self) -> Party:
        return next(iter(self.parties.values()))

    @property
    def offer(self) -> Offer | None:
        return self.core.state.providers[self.decliner.owner].offer

    def offers(self, offer: Offer) -> None:
        self.send(
            ev.OfferReceived(
                OfferEnvelope(offer, seal(DOMAIN, offer.signed(), self.decliner.key.sign)),
                self.decliner.key.address,
            )
        )

    def run_jobs(self, first: int, declines: int, **changes: object) -> int:
        """Runs jobs until the first provider has declined `declines` draws; returns the next
        number.
        """
        number = first
        while self.declined < declines:
            assert number < first + 80, "the beacon passes nobody over for ever"
            self.until_decided(self.order(number % 2, number, **changes))
            number += 1
        return number


def context_of(market: Market) -> StepContext:
    return StepContext(market.core.state, market.core.rules, UnixSeconds(market.at), ZERO_HASH)


def rest_of(market: DecliningMarket) -> int:
    """Returns until when the first provider is off offer; 0 if it is on offer."""
    return market.core.state.providers[market.decliner.owner].off_offer_until


@pytest.mark.rule("4.3", "4.8")
def test_provider_that_gives_up_too_much_is_off_offer_for_longer_each_time() -> None:
    market = DecliningMarket(*[Party(number) for number in range(5)])
    number, rests, state = 1, [], market.core.state
    for _ in range(4):
        while not rest_of(market):
            market.until_decided(market.order(number % 2, number))
            number += 1
        declined, until = market.declined, rest_of(market)
        shown = views.provider_view(state, market.decliner.owner, UnixSeconds(market.at))
        assert shown.off_offer_until == until and shown.answers == 0, "its owner can see it"
        rests.append(until - market.at)
        assert reliability.owners_on_offer(context_of(market), HOST.id()) == 4
        while market.at < until - 2:
            market.until_decided(market.order(number % 2, number))
            number += 1
        assert market.declined == declined, "it is neither drawn nor matched"
        while rest_of(market):
            market.beat()
        assert reliability.owners_on_offer(context_of(market), HOST.id()) == 5
        shown = views.provider_view(state, market.decliner.owner, UnixSeconds(market.at))
        assert shown.off_offer_until == 0
    first = DEVNET.off_offer_first
    assert [round(rest / first) for rest in rests] == [1, 2, 4, 4], "twice as long, up to a limit"


@pytest.mark.rule("4.3")
def test_fewer_than_five_answers_say_nothing() -> None:
    market = DecliningMarket(*[Party(number) for number in range(5)])
    while len(market.core.state.answers.get(market.decliner.owner) or ()) < ANSWERS_LEAST - 1:
        number = len(market.core.state.jobs) + 1
        market.until_decided(market.order(number % 2, number))
        assert not rest_of(market)


@pytest.mark.rule("4.3")
def test_postponed_or_underpaid_draws_do_not_count_as_declined() -> None:
    market = DecliningMarket(*[Party(number) for number in range(5)])
    market.ahead, market.reason = 2, DeclineReason.BUSY
    market.until_decided(market.order(0, 1))
    assert market.offer is not None
    market.ahead, market.reason = 0, DeclineReason.PRICE
    offered = market.offer
    dearer = replace(offered.slots[0], on_demand=Price(150_000))
    market.offers(
        replace(offered, seq=Sequence(2), expires=UnixSeconds(market.at + 900), slots=(dearer,))
    )
    market.declined = 0
    for number in range(2, 12):
        market.until_decided(market.order(0, number, max_price_per_hour=Price(120_000)))
    assert not market.declined and not rest_of(market), "a dearer owner is passed over"


class BusyMarket(Market):
    """A market whose cheapest provider always answers that a slot will be free in a second."""

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number:
            super()._run(party, assignment, spec)
            return
        decline = Decline(
            digest(DOMAIN, assignment),
            DeclineReason.BUSY,
            UnixSeconds(self.at + 1),
            UnixSeconds(self.at),
        )
        self.send(ev.DeclineReceived(seal(DOMAIN, decline, party.key.sign), party.key.address))


@pytest.mark.rule("4.2")
def test_provider_that_is_always_busy_does_not_keep_a_job() -> None:
    market = BusyMarket(Party(0, lies=True), *[Party(number) for number in range(1, 4)])
    for number in range(1, 6):
        job_id = market.order(0, number)
        market.until_decided(job_id, seconds=90)
        assert len(market.job(job_id).leases) < 30, "and is not asked every second"


@pytest.mark.rule("3.8", "3.26")
def test_withdrawn_provider_is_skipped_on_record_and_declines_nothing() -> None:
    market = DecliningMarket(*[Party(number) for number in range(5)])
    offered = market.offer
    assert offered is not None
    waiting = [
        market.order(number % 2, number) for number in range(1, 13)
    ]  # ordered while the provider is on the list
    market.offers(replace(offered, seq=Sequence(2), expires=WITHDRAWN))
    market.until_decided(*waiting)
    skips = {
        batch.commit_set.message.skips_hash
        for job_id in waiting
        for batch in market.job(job_id).batches
    }
    assert len(skips) > 1 and not market.declined, (
        "it was drawn and passed over, which stands in the receipts"
    )
    assert hash_list(()) in skips
    known = {lease for job_id in waiting for lease in market.job(job_id).leases}
    job_id = market.order(0, 13)
    market.until_decided(job_id)
    asked = {
        market.core.state.leases[lease].provider
        for lease in market.job(job_id).leases
        if lease not in known
    }
    assert market.decliner.owner not in asked
    eligible = market.core.state.market.eligible(HOST.id(), UnixSeconds(market.at))
    assert market.decliner.owner not in {slot.owner for slot in eligible.slots}
    market.offers(replace(offered, seq=Sequence(3), expires=UnixSeconds(market.at + 900)))
    market.run_jobs(14, 1)
    assert market.offer is not None


def test_only_the_withdrawal_time_withdraws_an_offer_and_an_expired_offer_is_refused() -> None:
    market = DecliningMarket(Party(0))
    offered = market.offer
    assert offered is not None

    def judged(expires: int) -> Code | None:
        offer = replace(offered, expires=UnixSeconds(expires))
        envelope = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), market.decliner.key.sign))
        try:
            assert (
                validate(envelope, DOMAIN, recover, UnixSeconds(market.at), 900)
                == market.decliner.key.address
            )
        except Refused as refused:
            return refused.code
        return None

    found = [
        judged(expires)
        for expires in (WITHDRAWN, 1, market.at, market.at + 1, market.at + 960, market.at + 961)
    ]
    assert found == [None, Code.EXPIRED, Code.EXPIRED, None, None, Code.EXPIRED]
