"""What travels by gossip for one offer: its envelope and its attestation records.

A record is opaque here: only its digest is compared with the one that a slot names.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import OFFER_GOSSIP_BYTES_MAX
from quorate_protocol.messages.offer import SLOTS_MAX, OfferEnvelope, check_version
from quorate_protocol.refusals import Code, Refused


class OfferGossip(Struct, frozen=True):
    """One message on the deployment's topic of offers. At most 8 KiB."""

    offer: OfferEnvelope
    records: tuple[bytes, ...] = ()  # attestation records that slots of the offer name


def encode(message: OfferGossip) -> bytes:
    """Canonical bytes of a message. `Refused(OVERSIZE)` if they are more than 8 KiB."""
    data = canonical.encode(message)
    if len(data) > OFFER_GOSSIP_BYTES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"offer gossip: it has {len(data)} bytes, at most {OFFER_GOSSIP_BYTES_MAX} are taken; "
            "leave records out, peers fetch them by their CID",
        )
    return data


def encode_with(offer: OfferEnvelope, records: Sequence[bytes]) -> bytes:
    """Canonical bytes of a message with as many of the records, in order, as fit into 8 KiB.
    `Refused(OVERSIZE)` if the offer alone does not fit.
    """
    for count in range(len(records), 0, -1):
        try:
            return encode(OfferGossip(offer, tuple(records[:count])))
        except Refused:
            continue  # peers fetch a record that was left out by its CID
    return encode(OfferGossip(offer))


def decode(data: bytes) -> OfferGossip:
    """Raises `Refused` for other bytes, and for a record that no slot names."""
    try:
        message = canonical.decode(OfferGossip, data, OFFER_GOSSIP_BYTES_MAX)
    except Refused:
        tree = canonical.parse(data, OFFER_GOSSIP_BYTES_MAX)
        check_version(tree.get("offer") if isinstance(tree, dict) else None)
        raise
    named = {slot.record for slot in message.offer.offer.slots}
    if len(message.records) > SLOTS_MAX or not all(
        sha256(record) in named for record in message.records
    ):
        raise Refused(Code.MALFORMED, "records: a record has a digest that no slot names")
    return message
