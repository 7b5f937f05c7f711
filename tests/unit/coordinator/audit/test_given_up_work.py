"""Tests providers that decline, postpone or withdraw what they are drawn for (PROTOCOL §4)."""

import pytest

from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_list
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, Offer, OfferEnvelope, validate
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import DeclineReason, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party


class DecliningMarket(Market):
    """A market whose first provider declines each draw and runs each job that it is matched
    with.
    """

    slots = 8
    declined = 0

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number or not self.core.state.leases[digest(DOMAIN, assignment)].index:
            super()._run(party, assignment, spec)
            return
        self.declined += 1
        self.decline(party, assignment, DeclineReason.DRAINING)

    @property
    def decliner(self) -> Party:
        return next(iter(self.parties.values()))

    @property
    def offer(self) -> Offer | None:
        return self.core.state.providers[self.decliner.owner].offer

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


class BusyMarket(Market):
    """A market whose cheapest provider always answers that a slot will be free in a second."""

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number:
            super()._run(party, assignment, spec)
            return
        self.decline(party, assignment, DeclineReason.BUSY, self.at + 1)


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
        market.order(number % 2, number) for number in range(1, 25)
    ]  # ordered while the provider is on the list
    market.send_offer(market.decliner, replace(offered, seq=Sequence(2), expires=WITHDRAWN))
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
    job_id = market.order(0, 25)
    market.until_decided(job_id)
    asked = {
        market.core.state.leases[lease].provider
        for lease in market.job(job_id).leases
        if lease not in known
    }
    assert market.decliner.owner not in asked
    eligible = market.core.state.market.eligible(CPUS.id())
    assert market.decliner.owner not in {slot.owner for slot in eligible.slots}
    market.send_offer(
        market.decliner, replace(offered, seq=Sequence(3), expires=UnixSeconds(market.at + 900))
    )
    market.run_jobs(26, 1)
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
