"""Stores the description of the machine, so that the gateway serves what the offer names."""

from quorate_content.store.content_store import ContentStore
from quorate_protocol.messages.offer import Hardware
from quorate_protocol.units import Hash32

PIN_OWNER = "inventory"


async def publish_inventory(store: ContentStore, hardware: Hardware) -> Hash32:
    """Replaces the last; returns its CID digest. `Refused(QUOTA)`, `Unavailable`: no room."""
    await store.unpin_all(PIN_OWNER)
    stored = await store.put(hardware.encode(), PIN_OWNER)
    digest = hardware.digest()
    assert stored.cid.digest == digest, "a document of one block has the CID of its bytes"
    return digest
