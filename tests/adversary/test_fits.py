"""Attacks by clients with jobs that an owner's offer does not promise (PROTOCOL 4.82)."""

import pytest

from quorate_attestation import fits
from quorate_coordinator.core.matching.nearest_offer import nearest_gpu
from quorate_coordinator.core.model import events as ev
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import GIB, GpuRequest, Resources, image_digest
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Sequence, Small
from quorate_protocol.values import replace
from support.markets import scripted_market
from support.markets.scripted_market import DOMAIN, Market, Party
from support.offers import a_slot, an_offer


def offering(market: Market, **changes: object) -> None:
    """Every owner publishes a new offer with these fields."""
    for party in market.parties.values():
        known = market.core.state.providers[party.owner].offer
        assert known is not None
        offer = replace(known, seq=Sequence(known.seq + 1), **changes)  # type: ignore[arg-type]
        signed = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), party.key.sign))
        market.send(ev.OfferReceived(signed, party.key.address))
    market.beat()


@pytest.mark.rule("4.82", "4.71")
def test_a_registry_image_goes_to_no_owner_without_an_engine(
    attack, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    market = Market(*[Party(number) for number in range(4)])
    offering(market, sandboxes=("bwrap",))
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


OWN = image_digest(scripted_market.a_spec("").image)


@pytest.mark.rule("4.82", "4.71")
@pytest.mark.parametrize(
    ("name", "refusing", "taking", "resources", "words"),
    [
        (
            "an input as large as the store quota",
            {"store_bytes": GIB},
            {"store_bytes": 4 * GIB},
            Resources(output_bytes=2 * GIB),
            "GB for image, inputs and outputs",
        ),
        (
            "an image that is on no owner's list",
            {"images": (ZERO_HASH,)},
            {"images": (ZERO_HASH, OWN)},
            Resources(),
            "on no owner's list",
        ),
    ],
)
def test_a_job_that_no_offer_promises_is_refused_before_anybody_fetches(  # type: ignore[no-untyped-def]
    attack, name, refusing, taking, resources, words
) -> None:
    market = Market(*[Party(number) for number in range(4)])
    offering(market, **refusing)
    with pytest.raises(Refused, match=words) as caught:
        market.order(0, 1, resources=resources)
    assert caught.value.code is Code.NO_OFFER and not market.core.state.leases
    offering(market, **taking)
    market.until_decided(market.order(0, 2, resources=resources))
    attack(
        name=name,
        before="each owner declines; three declines end an honest job too",
        now="the order is refused, and the refusal names what is missing",
        cost="nothing",
    )


@pytest.mark.rule("4.82", "4.71")
def test_a_gpu_job_for_cuda_99_is_refused_with_both_versions() -> None:
    host = Pool("L40S", "", Small(1))
    slot = replace(a_slot(host, 1000), cuda=124)
    spec = replace(scripted_market.a_spec("bait"), resources=Resources(gpu=GpuRequest(1, "", 0)))
    asked = replace(spec, resources=Resources(gpu=GpuRequest(1, "", 0, cuda_min=990)))
    offer = an_offer(Address(bytes(20)), 1, 100, (slot,))
    assert fits.fits(spec, slot, offer) and not fits.fits(asked, slot, offer)
    assert "supports CUDA 12.4, the job asks for 99.0" in nearest_gpu([offer], asked)
