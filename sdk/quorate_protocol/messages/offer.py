"""The offer: what a provider offers, at which prices, until when (PROTOCOL §3, Offer).

An offer is a canonical document of at most 4 KiB. The operator key signs its digest in
`SignedOffer`. This module knows version 4 of the document; other versions are refused by name.
"""

import re
from typing import ClassVar

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages import egress
from quorate_protocol.messages.classes import GPU_NAME, GPU_NAME_MAX, Host, Pool
from quorate_protocol.messages.document import Document
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.job_spec import CUDA_MAX
from quorate_protocol.messages.signed import SignedOffer
from quorate_protocol.readable import Readable
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Hash32,
    JobKind,
    Price,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace

VERSION = 4
SLOTS_MAX = 16
ADDRESSES_MAX = 4
SANDBOXES_MAX = 8
CACHED_MAX = 32
IMAGES_MAX = 16
CACHED_PREFIX_BYTES = 8
PRICE_MAX = 10**12
BYTES_OF_SLOT_MAX = 1 << 53
CPU_MILLIS_MAX = 1 << 30
BANDWIDTH_DEFAULT = 20 << 20  # bytes a second, of a provider that has not measured it
WITHDRAWN = UnixSeconds(0)  # `expires` of an offer that withdraws all earlier ones
EXPIRES_SLACK_SECONDS = 60  # an offer may outlive `offer_ttl` by so much, for clocks that differ
_SANDBOX_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class Gpu(Readable, frozen=True):
    """One GPU as the provider reports it (attestation level 0)."""

    model: str
    uuid: str
    vram_bytes: int
    driver: str


class Hardware(Document, frozen=True):
    """The inventory: the hardware of the provider's machine, as the provider reports it.

    It is a canonical document of its own. An offer names its digest, and the provider's gateway
    serves it as a raw block.
    """

    cores: int
    memory_bytes: int
    disk_bytes: int
    gpus: tuple[Gpu, ...] = ()


class SlotOffer(Readable, frozen=True):
    """Run slots of one pool, with a price per slot-hour for each price tier.

    A price of 0 means that the provider does not offer this tier. `cpu_millis` and all bytes but
    `vram_bytes` are what one run slot gives to a job.
    """

    pool: Pool
    host: Host
    count: Small  # count of run slots
    vram_bytes: int  # of one GPU; 0 for a CPU slot
    cpu_millis: int  # thousandths of a core
    memory_bytes: int
    scratch_bytes: int  # of /scratch and /tmp on disk
    output_bytes: int
    input_bytes: int  # image and inputs together
    spot: Price
    on_demand: Price
    reserved: Price
    attestation_level: Small = Small(0)
    record: Hash32 = ZERO_HASH  # CID digest of the attestation record; zero = none
    cuda: int = 0  # ten times the newest CUDA of the driver: 124 is 12.4; 0 = unknown

    @property
    def price(self) -> Price:
        """What its jobs pay: the on-demand price, or in its place the spot price."""
        return self.on_demand or self.spot

    def price_for(self, is_spot: bool) -> Price:
        """What a job pays whose spec has `spot`, or has not."""
        return self.spot if is_spot and self.spot else self.price

    def at_price(self, price: Price) -> "SlotOffer":
        """On the terms that it has."""
        if self.is_spot:
            return replace(self, spot=price)
        return replace(self, on_demand=price, spot=Price(self.spot * price // self.on_demand))

    @property
    def is_spot(self) -> bool:
        """Whether its rentals end when the owner needs the machine (PROTOCOL 12.37)."""
        return not self.on_demand

    @property
    def has_two_prices(self) -> bool:
        """Whether its spot rentals end for rentals on demand (PROTOCOL 12.41)."""
        return self.spot > 0 and self.on_demand > 0

    @property
    def gpu(self) -> str:
        """The GPU model, with the profile of a partition; "" for a CPU slot."""
        return f"{self.pool.gpu} {self.pool.mig_profile}".strip()


class Offer(Document, frozen=True):
    """The document of an offer: what the provider sells, and until when."""

    LATER_FIELDS: ClassVar[tuple[str, ...]] = ("egress",)  # left out at its default

    provider: Address
    seq: Sequence  # a higher one replaces this offer
    expires: UnixSeconds  # zero (WITHDRAWN) withdraws all earlier offers
    slots: tuple[SlotOffer, ...]
    inventory: Hash32  # CID digest of the provider's `Hardware` document
    sandboxes: tuple[str, ...]  # ports.Sandbox values
    kinds: tuple[JobKind, ...]
    region: str
    peer_key: Hash32  # Ed25519 public key, of which the peer id is made
    box_key: Hash32  # X25519 public key
    addresses: tuple[str, ...]  # base URLs of its gateway, and of others that have its attestations
    cached: tuple[bytes, ...] = ()  # first 8 bytes of the digests of large CIDs in its cache
    images: tuple[Hash32, ...] = ()  # digests of the only images that it runs; empty = any
    # Image, inputs and output of one job, for which its content store has room (`in_steps`).
    store_bytes: int = BYTES_OF_SLOT_MAX
    bandwidth: int = BANDWIDTH_DEFAULT  # bytes a second of its fetches, `in_steps`
    egress: tuple[str, ...] = ()  # hosts that its owner lets rentals reach (PROTOCOL 12.29)
    version: int = VERSION

    def signed(self) -> SignedOffer:
        return SignedOffer(self.provider, self.seq, self.expires, sha256(self.encode()))


class OfferEnvelope(Readable, frozen=True):
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
    size = len(offer.encode())
    if size > OFFER_BYTES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"offer: it has {size} bytes, at most {OFFER_BYTES_MAX} are taken; name fewer slots, "
            "addresses, images or cached CIDs",
        )
    if offer.signed() != envelope.signature.message:
        raise Refused(Code.BAD_SIGNATURE, "offer: the signature covers another document")
    if offer.expires != WITHDRAWN and not (
        now < offer.expires <= now + ttl_max + EXPIRES_SLACK_SECONDS
    ):
        raise Refused(Code.EXPIRED, f"offer: expires must lie within {ttl_max} s ahead")
    check_form(offer)
    return signer(domain, envelope.signature, recover)


def check_form(offer: Offer) -> None:
    """Refuses an offer whose fields are out of bounds. Size, expiry and signature are not
    checked.
    """
    if offer.version != VERSION:
        raise old_version(offer.version)
    counts = (
        ("slots", len(offer.slots), 1, SLOTS_MAX),
        ("sandboxes", len(offer.sandboxes), 1, SANDBOXES_MAX),
        ("addresses", len(offer.addresses), 0, ADDRESSES_MAX),
        ("cached", len(offer.cached), 0, CACHED_MAX),
        ("images", len(offer.images), 0, IMAGES_MAX),
    )
    for name, count, least, most in counts:
        if not least <= count <= most:
            raise Refused(
                Code.MALFORMED, f"offer.{name}: {count} are named, {least} to {most} are taken"
            )
    if not all(_SANDBOX_NAME.fullmatch(name) for name in offer.sandboxes):
        raise Refused(Code.MALFORMED, "offer.sandboxes: a name is 1 to 32 letters a-z, digits or -")
    if any(len(prefix) != CACHED_PREFIX_BYTES for prefix in offer.cached):
        raise Refused(
            Code.MALFORMED,
            f"offer.cached: each entry is the first {CACHED_PREFIX_BYTES} bytes of a digest",
        )
    if not 0 <= offer.store_bytes <= BYTES_OF_SLOT_MAX:
        raise Refused(Code.BAD_AMOUNT, "offer.storeBytes: it is out of bounds")
    if not 0 < offer.bandwidth <= BYTES_OF_SLOT_MAX:
        raise Refused(Code.BAD_AMOUNT, "offer.bandwidth: it is out of bounds")
    fault = egress.fault_of(offer.egress)
    if fault:
        raise Refused(Code.MALFORMED, f"offer.egress: {fault}")
    for slot in offer.slots:
        _check_slot(slot)
    if len({slot.pool.id() for slot in offer.slots}) != len(offer.slots):
        raise Refused(Code.MALFORMED, "offer.slots: a pool occurs twice")


def _check_slot(slot: SlotOffer) -> None:
    slot.pool.validate()
    slot.host.validate(slot.pool.is_gpu)
    prices = (slot.spot, slot.on_demand, slot.reserved)
    disk = (slot.scratch_bytes, slot.output_bytes, slot.input_bytes)
    if slot.count < 1 or not all(0 <= price <= PRICE_MAX for price in prices):
        raise Refused(
            Code.BAD_AMOUNT, "offer.slots: a slot needs a count from 1 and prices up to 10^12"
        )
    if not (
        0 < slot.cpu_millis <= CPU_MILLIS_MAX
        and 0 < slot.memory_bytes <= BYTES_OF_SLOT_MAX
        and 0 <= slot.vram_bytes <= BYTES_OF_SLOT_MAX
        and all(0 <= size <= BYTES_OF_SLOT_MAX for size in disk)
    ):
        raise Refused(
            Code.BAD_AMOUNT,
            "offer.slots: cpuMillis and memoryBytes must be above 0, scratchBytes, outputBytes and "
            "inputBytes at least 0; they say what one run slot gives to a job",
        )
    if not 0 <= slot.cuda <= (CUDA_MAX if slot.pool.is_gpu else 0):
        raise Refused(
            Code.BAD_AMOUNT, f"offer.slots: cuda is ten times a version, at most {CUDA_MAX}"
        )
    if slot.pool.is_gpu != (slot.vram_bytes > 0):
        raise Refused(
            Code.MALFORMED, "offer.slots: a GPU slot names its vramBytes; a CPU slot has none"
        )
    if (slot.attestation_level > 0) != (slot.record != ZERO_HASH):
        raise Refused(
            Code.MALFORMED,
            "offer.slots: an attestation level above 0 needs the digest of its record, and level 0 "
            "has none",
        )


def in_steps(size: int) -> int:
    """Rounds a number of bytes down to 1, 1.25, 1.5 or 1.75 times a power of two. So an offer
    changes seldom, and says little of what happens on its owner's machine.
    """
    spare = max(0, size.bit_length() - 3)
    return min(size >> spare << spare, BYTES_OF_SLOT_MAX)


def offered_gpu_name(driver_name: str) -> str:
    """A driver's name of a GPU in the form that an offer takes, without the maker's name."""
    text = re.sub(r"[^A-Za-z0-9 ._+/-]", " ", driver_name.removeprefix("NVIDIA "))
    name = " ".join(text.split())[:GPU_NAME_MAX].lstrip(" ._+/-")
    return name if GPU_NAME.fullmatch(name) else "unknown GPU"


def gpus_needed(slots: tuple[SlotOffer, ...], gpu: str) -> int:
    """How many GPUs of a model all slots of an offer need together, whatever their pools.
    The CPU ("") counts as one: it is the same for all CPU slots.
    """
    if not gpu:
        return 1
    return sum(slot.count * slot.pool.gpus for slot in slots if slot.gpu == gpu)


def price_per_gpu_hour(slot: SlotOffer, price: Price) -> Price:
    """A price per slot-hour as a price per GPU-hour, for people. It is rounded up, so that nobody
    pays more than is shown. A CPU slot counts as one.
    """
    return Price(-(-price // max(1, slot.pool.gpus)))


def without_times(offer: Offer) -> Offer:
    """The offer with `seq` and `expires` of zero. Two offers are the same but for a refresh if
    these are equal.
    """
    return replace(offer, seq=Sequence(0), expires=UnixSeconds(0))


def old_version(version: object) -> Refused:
    return Refused(
        Code.UNSUPPORTED,
        f"offer: version {str(version)[:16]} is not taken, only version {VERSION}; install a "
        "release of Quorate on the provider that signs it",
    )


def check_version(tree: canonical.Json) -> None:
    """Refuses the JSON tree of an `OfferEnvelope` by name if its document has another version. The
    codec alone would only name the first field that it does not know. Any other tree passes.
    """
    offer = tree.get("offer") if isinstance(tree, dict) else None
    version = offer.get("version") if isinstance(offer, dict) else None
    if type(version) is int and version != VERSION:
        raise old_version(version)
