"""Offers by gossip: what is passed on, what is dropped, and whose fault it is."""

import threading

import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import OFFER_GOSSIP_BYTES_MAX
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.offer import WITHDRAWN, Offer, OfferEnvelope
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.rules.offer_gate import (
    OFFERS_BURST,
    OFFERS_PER_SECOND,
    Judgement,
    MarketSnapshot,
    OfferGate,
    OwnerStanding,
)
from quorate_protocol.units import Address, Seconds, Signature, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.offers import a_slot, an_offer

DOMAIN = Domain(31337, Address(b"\x11" * 20))
OPERATOR, OTHER = KeySigner(b"\x01" * 32), KeySigner(b"\x02" * 32)
OWNER, SECOND = Address(b"\x02" * 20), Address(b"\x03" * 20)
NOW, TTL = 1_000, Seconds(900)
STANDING = OwnerStanding(OPERATOR.address, {CPUS.id(): 2})
SNAPSHOT = MarketSnapshot({OWNER: STANDING, SECOND: STANDING})


def gate(snapshot: MarketSnapshot = SNAPSHOT) -> OfferGate:
    return OfferGate(DOMAIN, TTL, recover, snapshot)


def offering(seq: int = 1, owner: Address = OWNER, **changes: object) -> Offer:
    offer = an_offer(owner, seq, NOW + TTL, (a_slot(CPUS, 100_000, 2),))
    return replace(offer, **changes)  # type: ignore[arg-type]


def gossip(offer: Offer, key: KeySigner = OPERATOR) -> bytes:
    return offer_gossip.encode(
        OfferGossip(OfferEnvelope(offer, seal(DOMAIN, offer.signed(), key.sign)))
    )


@pytest.mark.rule("3.50")
def test_a_good_offer_is_accepted_with_its_signer() -> None:
    found = gate().judge(gossip(offering()), NOW)
    assert (found.judgement, found.key) == (Judgement.ACCEPT, OPERATOR.address)
    assert found.offer is not None and found.offer.offer == offering()


def envelope_bytes(envelope: OfferEnvelope) -> bytes:
    return canonical.encode(OfferGossip(envelope))


SIGNED = OfferEnvelope(offering(), seal(DOMAIN, offering().signed(), OPERATOR.sign))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b"[" * 5_000,
        b" " * (OFFER_GOSSIP_BYTES_MAX + 1),
        gossip(offering()) + b" ",
        envelope_bytes(replace(SIGNED, offer=offering(region="us"))),
        envelope_bytes(
            replace(SIGNED, signature=Envelope(SIGNED.signature.message, Signature(bytes(65))))
        ),
        envelope_bytes(
            OfferEnvelope(
                offering(sandboxes=()), seal(DOMAIN, offering(sandboxes=()).signed(), OPERATOR.sign)
            )
        ),
    ],
)
def test_what_any_peer_can_see_is_wrong_is_rejected(data: bytes) -> None:
    assert gate().judge(data, NOW).judgement is Judgement.REJECT


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gossip(offering(expires=UnixSeconds(NOW))), "expires"),
        (gossip(offering(expires=UnixSeconds(NOW + 10**6))), "expires"),
        (gossip(offering(), OTHER), "is not the operator key"),
        (gossip(offering(owner=Address(b"\x09" * 20))), "is not registered"),
        (gossip(offering(slots=(a_slot(CPUS, 1, 3),))), "3 run slots, and their owner has 2"),
        (gossip(offering(slots=(a_slot(Pool("T4", "", Small(1)), 1),))), "has 0 stake slots"),
    ],
)
def test_what_depends_on_time_or_chain_is_ignored(data: bytes, words: str) -> None:
    found = gate().judge(data, NOW)
    assert found.judgement is Judgement.IGNORE and words in found.reason


@pytest.mark.rule("3.50")
def test_a_repeated_or_rewound_sequence_number_is_ignored() -> None:
    one = gate()
    assert one.judge(gossip(offering(5)), NOW).judgement is Judgement.ACCEPT
    for seq in (5, 4):
        found = one.judge(gossip(offering(seq)), NOW)
        assert found.judgement is Judgement.IGNORE and "not above 5" in found.reason
    assert one.judge(gossip(offering(6)), NOW).judgement is Judgement.ACCEPT
    assert one.judge(gossip(offering(1, SECOND)), NOW).judgement is Judgement.ACCEPT


def test_a_withdrawal_needs_no_stake() -> None:
    bare = MarketSnapshot({OWNER: OwnerStanding(OPERATOR.address, {})})
    data = gossip(offering(expires=WITHDRAWN))
    assert gate(bare).judge(data, NOW).judgement is Judgement.ACCEPT


def test_a_new_snapshot_counts_for_later_messages() -> None:
    one, data = gate(MarketSnapshot({})), gossip(offering())
    assert one.judge(data, NOW).judgement is Judgement.IGNORE
    one.replace_snapshot(SNAPSHOT)
    assert one.judge(data, NOW).judgement is Judgement.ACCEPT


@pytest.mark.rule("3.50")
def test_too_many_offers_are_charged_to_their_owner_alone() -> None:
    one, burst = gate(), int(OFFERS_BURST)
    for seq in range(1, burst + 1):
        assert one.judge(gossip(offering(seq)), NOW).judgement is Judgement.ACCEPT
    found = one.judge(gossip(offering(burst + 1)), NOW)
    assert found.judgement is Judgement.IGNORE and "too often" in found.reason
    assert one.judge(gossip(offering(1, SECOND)), NOW).judgement is Judgement.ACCEPT
    later = NOW + 1 / OFFERS_PER_SECOND
    assert one.judge(gossip(offering(burst + 1)), later).judgement is Judgement.ACCEPT


def test_forged_offers_use_up_nobodys_allowance() -> None:
    one = gate()
    for seq in range(1, 50):
        one.judge(gossip(offering(seq), OTHER), NOW)
    assert one.judge(gossip(offering(1)), NOW).judgement is Judgement.ACCEPT


def test_of_one_offer_in_many_threads_exactly_one_is_accepted() -> None:
    one, data, accepted = gate(), gossip(offering()), list[Judgement]()
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        accepted.append(one.judge(data, NOW).judgement)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accepted.count(Judgement.ACCEPT) == 1 and len(accepted) == 8
