"""The offer: a provider's signed, expiring advert. A canonical document of at most 2 kB; the
operator key signs `SignedOffer`.
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
WITHDRAWN = UnixSeconds(0)  # `expires` of an offer that takes back those before it


class Gpu(Struct, frozen=True):
    """One GPU as reported (level L0)."""

    model: str
    uuid: str
    vram_bytes: int
    driver: str


class Hardware(Struct, frozen=True):
    """What the machine says of itself."""

    cores: int
    memory_bytes: int
    disk_bytes: int
    gpus: tuple[Gpu, ...] = ()


class SlotOffer(Struct, frozen=True):
    """Run slots of one host class and their price per slot-hour, by price tier; a price of 0 =
    tier not offered.
    """

    host: HostClass
    count: Small
    spot: Price
    on_demand: Price
    reserved: Price


class Offer(Struct, frozen=True):
    """What a provider advertises until `expires`; a higher `seq` replaces it."""

    provider: Address
    seq: Sequence
    expires: UnixSeconds
    slots: tuple[SlotOffer, ...]
    hardware: Hardware
    sandbox: str  # ports.Sandbox value
    attestation_level: Small
    kinds: tuple[JobKind, ...]
    region: str
    peer_key: Hash32
    box_key: Hash32
    addresses: tuple[str, ...]  # base URLs of the provider's gateway
    cached: tuple[Hash32, ...] = ()  # digests of large CIDs in its cache
    version: int = 1

    def encode(self) -> bytes:
        """Canonical document."""
        return canonical.encode(self)

    def signed(self) -> SignedOffer:
        """What the operator key signs."""
        return SignedOffer(self.provider, self.seq, self.expires, sha256(self.encode()))


class OfferEnvelope(Struct, frozen=True):
    """The document and the signature over its digest: what travels."""

    offer: Offer
    signature: Envelope[SignedOffer]


def validate(
    envelope: OfferEnvelope, domain: Domain, recover: Recover, now: UnixSeconds, ttl_max: int
) -> Address:
    """Checks form, expiry and that the signature covers exactly this document; returns the key
    that signed.

    One that is withdrawn never was in time: whoever holds it neither matches nor draws its
    provider (PROTOCOL §3, Offer).
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
            "offer: slots (1 to 16), addresses (at most 4), cached (at most 8) or version",
        )
    for slot in offer.slots:
        slot.host.validate()
        if slot.count < 1 or not all(
            0 <= price <= PRICE_MAX for price in (slot.spot, slot.on_demand, slot.reserved)
        ):
            raise Refused(Code.BAD_AMOUNT, "offer: a slot needs a count and prices below 10^12")
    if len({slot.host.id() for slot in offer.slots}) != len(offer.slots):
        raise Refused(Code.MALFORMED, "offer: one host class stands twice")
    return signer(domain, envelope.signature, recover)
