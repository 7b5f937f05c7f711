"""The offer's document: its form, its size, and what is refused by name."""

import json

import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages import frames, offer_gossip
from quorate_protocol.messages.classes import CPUS, Host, Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import (
    CACHED_MAX,
    Offer,
    OfferEnvelope,
    SlotOffer,
    price_per_gpu_hour,
    validate,
    without_times,
)
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Price, Sequence, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.offers import GPU_MACHINE, MACHINE, a_slot, an_offer

DOMAIN = Domain(31337, Address(b"\x11" * 20))
OPERATOR = KeySigner(b"\x01" * 32)
OWNER = Address(b"\x02" * 20)
CPU = CPUS
GPU = Pool("H100 SXM", "", Small(2))
NOW, TTL = UnixSeconds(1_000), 900
RECORD = b"an attestation record"


def signed(offer: Offer) -> OfferEnvelope:
    return OfferEnvelope(offer, seal(DOMAIN, offer.signed(), OPERATOR.sign))


def offering(*slots: SlotOffer) -> Offer:
    return an_offer(OWNER, 1, NOW + TTL, slots or (a_slot(CPU, 100_000),))


def check(offer: Offer) -> Address:
    return validate(signed(offer), DOMAIN, recover, NOW, TTL)


@pytest.mark.rule("3.8")
def test_an_offer_of_cpus_and_gpus_is_taken_and_its_signer_named() -> None:
    attested = replace(a_slot(GPU, 2_000_000), attestation_level=Small(1), record=sha256(RECORD))
    assert check(offering(a_slot(CPU, 100_000, 4), attested)) == OPERATOR.address


@pytest.mark.rule("3.8")
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"slots": ()}, Code.MALFORMED, "slots: 0 are named"),
        ({"sandboxes": ()}, Code.MALFORMED, "sandboxes"),
        ({"sandboxes": ("No Sandbox",)}, Code.MALFORMED, "sandboxes"),
        ({"addresses": ("http://a",) * 5}, Code.MALFORMED, "addresses: 5 are named, 0 to 4"),
        ({"cached": (bytes(8),) * (CACHED_MAX + 1)}, Code.MALFORMED, "cached"),
        ({"cached": (bytes(32),)}, Code.MALFORMED, "first 8 bytes"),
        ({"slots": (a_slot(CPU, 1), a_slot(CPU, 2))}, Code.MALFORMED, "occurs twice"),
        ({"version": 2}, Code.UNSUPPORTED, "version 2"),
        ({"region": "x" * OFFER_BYTES_MAX}, Code.OVERSIZE, f"at most {OFFER_BYTES_MAX}"),
        ({"expires": UnixSeconds(999)}, Code.EXPIRED, "expires"),
        ({"expires": UnixSeconds(NOW + TTL + 61)}, Code.EXPIRED, "expires"),
    ],
)
def test_a_field_out_of_bounds_is_refused_by_name(
    change: dict[str, object], code: Code, words: str
) -> None:
    with pytest.raises(Refused, match=words) as caught:
        check(replace(offering(), **change))  # type: ignore[arg-type]
    assert caught.value.code is code


@pytest.mark.rule("3.8")
@pytest.mark.parametrize(
    "slot",
    [
        replace(a_slot(CPU, 1), pool=GPU),
        replace(a_slot(GPU, 1), pool=CPU),
        replace(a_slot(GPU, 1), host=MACHINE),
        replace(a_slot(CPU, 1), host=GPU_MACHINE),
        replace(a_slot(GPU, 1), vram_bytes=0),
        replace(a_slot(GPU, 1), pool=Pool("H100\n", "", Small(1))),
        replace(a_slot(CPU, 1), count=Small(0)),
        replace(a_slot(CPU, 1), cpu_millis=0),
        replace(a_slot(CPU, 1), memory_bytes=1 << 62),
        replace(a_slot(CPU, 1), on_demand=Price(10**13)),
        replace(a_slot(CPU, 1), attestation_level=Small(1)),
        replace(a_slot(CPU, 1), record=sha256(RECORD)),
        replace(a_slot(CPU, 1), host=Host("x86_64", "v9")),
    ],
)
def test_a_slot_that_contradicts_itself_is_refused(slot: SlotOffer) -> None:
    with pytest.raises(Refused):
        check(offering(slot))


@pytest.mark.rule("3.8")
def test_an_offer_of_version_1_is_refused_by_name_with_a_remedy() -> None:
    frame = json.loads(frames.encode(frames.OfferSent(signed(offering()))))
    document = frame["frame"]["offer"]["offer"]
    document["version"] = 1
    document["hardware"] = {"cores": 4, "diskBytes": 1, "gpus": [], "memoryBytes": 1}
    del document["inventory"]
    with pytest.raises(Refused, match=r"version 1 is not taken.*install a release") as caught:
        frames.decode(canonical.canonical(frame))
    assert caught.value.code is Code.UNSUPPORTED
    message = {"offer": frame["frame"]["offer"], "records": []}
    with pytest.raises(Refused, match="version 1 is not taken"):
        offer_gossip.decode(canonical.canonical(message))


@pytest.mark.rule("3.8")
def test_more_run_slots_than_a_count_can_hold_are_refused_by_name() -> None:
    frame = json.loads(frames.encode(frames.OfferSent(signed(offering()))))
    frame["frame"]["offer"]["offer"]["slots"][0]["count"] = 30_000
    with pytest.raises(Refused, match=r"slots\.\[0\]\.count|slots\[0\]\.count"):
        frames.decode(canonical.canonical(frame))


def test_a_price_is_per_slot_and_shown_per_gpu_rounded_up() -> None:
    assert price_per_gpu_hour(a_slot(GPU, 1), Price(2_000_001)) == 1_000_001
    assert price_per_gpu_hour(a_slot(CPU, 1), Price(7)) == 7


def test_a_refresh_differs_only_in_sequence_number_and_expiry() -> None:
    offer = offering()
    refreshed = replace(offer, seq=Sequence(9), expires=UnixSeconds(NOW + 5))
    assert without_times(refreshed) == without_times(offer)
    assert without_times(replace(offer, region="us")) != without_times(offer)


@pytest.mark.rule("3.44")
def test_an_offer_is_gossiped_with_the_records_that_its_slots_name() -> None:
    slot = replace(a_slot(GPU, 1), attestation_level=Small(1), record=sha256(RECORD))
    message = OfferGossip(signed(offering(slot)), (RECORD,))
    assert offer_gossip.decode(offer_gossip.encode(message)) == message
    bare = replace(message, records=())
    assert offer_gossip.decode(offer_gossip.encode(bare)) == bare
    with pytest.raises(Refused, match="no slot names"):
        offer_gossip.decode(canonical.encode(replace(message, records=(b"another",))))
    with pytest.raises(Refused, match="leave records out"):
        offer_gossip.encode(replace(message, records=(RECORD * 400,)))
