"""A listener keeps the newest offer of each provider and key, and passes nothing on."""

import pytest

from quorate.trust import offer_listener
from quorate.trust.offer_listener import OfferListener
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.units import Address, Seconds
from quorate_runtime.keys.crypto import KeySigner, recover
from support.offers import a_slot, an_offer

DOMAIN = Domain(31337, Address(b"\x11" * 20))
OPERATOR, FORGER = KeySigner(b"\x01" * 32), KeySigner(b"\x02" * 32)
OWNER = Address(b"\x02" * 20)
NOW, TTL = 1_000, Seconds(900)


def message(
    seq: int, key: KeySigner = OPERATOR, owner: Address = OWNER, expires: int = NOW + TTL
) -> bytes:
    offer = an_offer(owner, seq, expires, (a_slot(CPUS, 100_000),))
    return offer_gossip.encode(
        OfferGossip(OfferEnvelope(offer, seal(DOMAIN, offer.signed(), key.sign)))
    )


def listener() -> OfferListener:
    return OfferListener(DOMAIN, TTL, recover, lambda: float(NOW))


@pytest.mark.rule("3.50")
def test_valid_offers_are_kept_and_not_passed_on() -> None:
    found = listener()
    assert found.judge(message(2), "peer") is Verdict.IGNORE
    assert found.judge(message(3), "peer") is Verdict.IGNORE
    assert found.judge(message(1), "peer") is Verdict.IGNORE, "a rewound one replaces nothing"
    [heard] = found.heard()
    assert (heard.envelope.offer.seq, heard.key) == (3, OPERATOR.address)


def test_a_forgers_offer_does_not_replace_the_providers() -> None:
    found = listener()
    found.judge(message(1), "peer")
    found.judge(message(9, FORGER), "peer")
    assert {(item.key, item.envelope.offer.seq) for item in found.heard()} == {
        (OPERATOR.address, 1),
        (FORGER.address, 9),
    }


def test_what_is_wrong_with_the_bytes_alone_counts_against_the_forwarder() -> None:
    found = listener()
    assert found.judge(message(1, expires=NOW - 1), "peer") is Verdict.IGNORE, "clocks differ"
    for data in (b"", b"{}", message(1)[:-1], bytes(9_000)):
        assert found.judge(data, "peer") is Verdict.REJECT
    assert found.refused == 5 and not found.heard()


def test_a_flood_of_one_forwarder_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer_listener, "KEPT_OF_FORWARDER_MAX", 3)
    monkeypatch.setattr(offer_listener, "KEPT_MAX", 4)
    found = listener()
    for number in range(1, 9):
        found.judge(message(1, owner=Address(bytes([number]) * 20)), "flooder")
    for number in range(21, 29):
        found.judge(message(1, owner=Address(bytes([number]) * 20)), "honest")
    owners = [item.envelope.offer.provider[0] for item in found.heard()]
    assert owners == [1, 2, 3, 21]
