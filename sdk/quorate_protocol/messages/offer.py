"""The offer: what a provider offers, at which prices, until when.

An offer is a canonical document of at most 2 kB. The operator key signs its digest in
`SignedOffer`.
"""

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.hashing import sha256
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.signed import SignedOffer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.classes import HostClass
from quorate_protocol.units import Address, Hash32, JobKind, Price, Sequence, Small, UnixSeconds

ADDRESSES_MAX = 4
CACHED_MAX = 8
PRICE_MAX = 10**12
WITHDRAWN = UnixSeconds(0)  # `expires` of an offer that withdraws all earlier ones


class Gpu(Struct, frozen=True):
    """One GPU as the provider reports it (attestation level 0)."""

    model: str
    uuid: str
    vram_bytes: int
    driver: str


class Hardware(Struct, frozen=True):
    """The hardware of the provider's machine, as the provider reports it."""

    cores: int
    memory_bytes: int
    disk_bytes: int
    gpus: tuple[Gpu, ...] = ()


class SlotOffer(Struct, frozen=True):
    """Run slots of one host class, with a price per slot-hour for each price tier.

    A price of 0 means that the provider does not offer this tier.
    """

    host: HostClass
    count: Small  # count of run slots
    spot: Price
    on_demand: Price
    reserved: Price


class Offer(Struct, frozen=True):
    """The document of an offer: what the provider sells, and until when."""

    provider: Address
    seq: Sequence  # a higher one replaces this offer
    expires: UnixSeconds  # zero (WITHDRAWN) withdraws all earlier offers
    slots: tuple[SlotOffer, ...]
    hardware: Hardware
    sandbox: str  # ports.Sandbox value
    attestation_level: Small
    kinds: tuple[JobKind, ...]
    region: str
    peer_key: Hash32  # Ed25519 public key
    box_key: Hash32  # X25519 public key
    addresses: tuple[str, ...]  # base URLs of the provider's gateway
    cached: tuple[Hash32, ...] = ()  # digests of large CIDs in its cache
    version: int = 1

    def encode(self) -> bytes:
        """Bytes of the canonical document."""
        return canonical.encode(self)

    def signed(self) -> SignedOffer:
        """The message that the operator key signs."""
        return SignedOffer(self.provider, self.seq, self.expires, sha256(self.encode()))


class OfferEnvelope(Struct, frozen=True):
    """An offer's document with the signature over its digest, as it travels."""

    offer: Offer
    signature: Envelope[SignedOffer]


def validate(
    envelope: OfferEnvelope, domain: Domain, recover: Recover, now: UnixSeconds, ttl_max: int
) -> Address:
    """Checks form, expiry and signature of an offer, and returns the key that signed.

    The signature must cover exactly this document. A withdrawal (`expires` of zero) passes the
    check: the coordinator then neither matches nor draws the provider (PROTOCOL §3, Offer).
    """
    offer = envelope.offer
    if len(offer.encode()) > OFFER_BYTES_MAX:
        raise Refused(Code.OVERSIZE, f"offer: at most {OFFER_BYTES_MAX} bytes")
    if offer.signed() != envelope.signature.message:
        raise Refused(Code.BAD_SIGNATURE, "offer: the signature covers another document")
    if offer.expires != WITHDRAWN and not now < offer.expires <= now + ttl_max + 60:
        raise Refused(Code.EXPIRED, f"offer: expires must lie within {ttl_max} s ahead")
    if (
        offer.version != 1
        or not 1 <= len(offer.slots) <= 16
        or len(offer.addresses) > ADDRESSES_MAX
        or len(offer.cached) > CACHED_MAX
    ):
        raise Refused(
            Code.MALFORMED,
            "offer: it needs version 1, 1 to 16 slots, at most 4 addresses and 8 cached",
        )
    for slot in offer.slots:
        slot.host.validate()
        if slot.count < 1 or not all(
            0 <= price <= PRICE_MAX for price in (slot.spot, slot.on_demand, slot.reserved)
        ):
            raise Refused(Code.BAD_AMOUNT, "offer: a slot needs a count and prices below 10^12")
    if len({slot.host.id() for slot in offer.slots}) != len(offer.slots):
        raise Refused(Code.MALFORMED, "offer: a host class occurs twice")
    return signer(domain, envelope.signature, recover)
