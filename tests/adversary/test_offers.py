"""Attacks by owners that offer what they do not have."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.refusals import Code, Refused
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.offers import a_slot, an_offer


@pytest.mark.rule("3.45")
def test_an_owner_cannot_offer_run_slots_that_have_no_stake(attack) -> None:  # type: ignore[no-untyped-def]
    market = Market(*[Party(number) for number in range(3)])
    owner = next(iter(market.parties.values()))
    offer = an_offer(owner.owner, 2, market.at + 900, (a_slot(CPUS, 100_000, 30_000),))
    envelope = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), owner.key.sign))
    with pytest.raises(Refused) as caught:
        market.send(ev.OfferReceived(envelope, owner.key.address))
    assert caught.value.code is Code.OVER_STAKE
    kept = market.core.state.providers[owner.owner].offer
    assert kept is not None
    attack(
        name="one stake slot, 30,000 run slots on offer",
        before="100 of 100 jobs, each held for a day",
        now=f"refused; {kept.slots[0].count} run slot stays on offer",
        cost="the stake of one slot for each run slot",
    )
