"""Stores the description of the machine, so that the gateway serves what the offer names."""

from quorate_content.store.content_store import ContentStore
from quorate_protocol.messages.offer import Hardware
from quorate_protocol.units import Hash32

PIN_OWNER = "inventory"


async def publish_inventory(store: ContentStore, hardware: Hardware) -> Hash32:
    """Puts the canonical `Hardware` document into the store in place of the last one, and returns
    the digest of its CID.

    `Refused(QUOTA)` or `Unavailable` when the store has no room.
    """
    await store.unpin_all(PIN_OWNER)
    stored = await store.put(hardware.encode(), PIN_OWNER)
    digest = hardware.digest()
    assert stored.cid.digest == digest, "a document of one block has the CID of its bytes"
    return digest
