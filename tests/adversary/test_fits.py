"""Attacks by clients with jobs that an owner's offer does not promise (PROTOCOL 4.82)."""

import pytest

from quorate_coordinator.core import events as ev
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Sequence
from quorate_protocol.values import replace
from support.markets import scripted_market
from support.markets.scripted_market import DOMAIN, Market, Party


@pytest.mark.rule("4.82", "4.71")
def test_a_registry_image_goes_to_no_owner_without_an_engine(
    attack, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    market = Market(*[Party(number) for number in range(4)])
    for party in market.parties.values():
        known = market.core.state.providers[party.owner].offer
        assert known is not None
        offer = replace(known, seq=Sequence(2), sandboxes=("bwrap",))
        signed = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), party.key.sign))
        market.send(ev.OfferReceived(signed, party.key.address))
    market.beat()
    assert market.order(0, 1), "an image named by its CID runs in every sandbox"
    spec = replace(
        scripted_market.a_spec("bait"), image=f"docker.io/bait@sha256:{'ab' * 32}", image_bytes=0
    )
    monkeypatch.setattr(scripted_market, "a_spec", lambda name: spec)
    with pytest.raises(Refused) as caught:
        market.order(0, 2, resources=Resources())
    assert caught.value.code is Code.NO_OFFER
    attack(
        name="a registry image for owners without an engine",
        before="a Decline that counts against each owner",
        now="the order is refused: no offer fits",
        cost="nothing",
    )
