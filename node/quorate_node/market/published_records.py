"""The newest attestation documents of this provider: in its store, and named by its offer."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from quorate_attestation.attestation_document import AttestationDocument, GpuEvidence
from quorate_attestation.catalogue import CPU
from quorate_content.dag.cid import parse
from quorate_content.store.content_store import ContentStore
from quorate_protocol.codec import canonical, cids
from quorate_protocol.messages.offer import Hardware, SlotOffer, gpus_needed
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Hash32, Round, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.files import write_atomic

FILE = "attestation.json"
FILE_BYTES_MAX = 64 * 1024
PIN_OWNER = "attestation"
LEVEL_CHALLENGED = Small(1)

log = logging.getLogger(__name__)


class PublishedDocument(Struct, frozen=True):
    """One attestation document that the store has."""

    model: str  # canonical name in the catalogue
    record: Hash32  # digest of the document
    gpus: int
    expires: UnixSeconds


class Published(Struct, frozen=True):
    """The content of the file: the documents of the newest challenge."""

    beacon_round: Round = Round(0)
    documents: tuple[PublishedDocument, ...] = ()


class PublishedRecords:
    """Keeps the documents of the newest challenge, also over restarts."""

    def __init__(self, store: ContentStore, file: Path, clock: Clock) -> None:
        """`file` names the documents; a file that cannot be read counts as none."""
        self._store, self._file, self._clock = store, file, clock
        self.newest = _read(file)

    async def keep_proof(self, beacon_round: Round, data: bytes) -> str:
        return str((await self._store.put(data, _owner(beacon_round))).cid)

    async def publish(
        self, beacon_round: Round, found: Mapping[str, Sequence[GpuEvidence]]
    ) -> None:
        """Replaces the last challenge's. `found` maps a model's name to evidence."""
        documents = []
        for model, gpus in found.items():
            document = AttestationDocument(tuple(gpus))
            await self._store.put(document.encode(), _owner(beacon_round))
            expires = min(item.message.expires for gpu in gpus for item in gpu.records)
            documents.append(PublishedDocument(model, document.digest(), len(gpus), expires))
        before = self.newest.beacon_round
        self.newest = Published(beacon_round, tuple(documents))
        write_atomic(self._file, canonical.encode(self.newest))
        if before != beacon_round:
            await self._store.unpin_all(_owner(before))

    async def drop_proofs(self, beacon_round: Round) -> None:
        """Lets the store remove the proofs of a challenge that gave no records."""
        if beacon_round != self.newest.beacon_round:
            await self._store.unpin_all(_owner(beacon_round))

    def attested(self, slots: Iterable[SlotOffer]) -> tuple[SlotOffer, ...]:
        """Level 1 where live records cover all GPUs."""
        every = tuple(slots)
        return tuple(self._attested(slot, gpus_needed(every, slot.gpu)) for slot in every)

    def _attested(self, slot: SlotOffer, needed: int) -> SlotOffer:
        for item in self.newest.documents:
            is_live = item.expires > self._clock.now()
            if item.model == (slot.gpu or CPU.name) and item.gpus >= needed and is_live:
                return replace(slot, attestation_level=LEVEL_CHALLENGED, record=item.record)
        return slot

    async def document(self, record: Hash32) -> bytes | None:
        """None if the store has lost it."""
        try:
            async with await self._store.lease(parse(cids.cid_text(cids.RAW, record))) as lease:
                return await asyncio.to_thread(lease.path.read_bytes)
        except (Refused, Unavailable):
            return None  # not re-raised: peers fetch it by its CID, or not at all

    def expires(self) -> UnixSeconds:
        """0 if there is none."""
        return min((item.expires for item in self.newest.documents), default=UnixSeconds(0))


def _owner(beacon_round: Round) -> str:
    return f"{PIN_OWNER}-{beacon_round}"


def _read(file: Path) -> Published:
    if not file.exists():
        return Published()
    try:
        return canonical.decode(Published, file.read_bytes(), FILE_BYTES_MAX)
    except Refused as refused:
        # Not re-raised: without the file the provider asks for a new challenge.
        log.warning("%s cannot be read and is ignored: %s", file, refused)
        return Published()


INVENTORY_OWNER = "inventory"


async def publish_inventory(store: ContentStore, hardware: Hardware) -> Hash32:
    """Replaces the last; returns its CID digest. `Refused(QUOTA)`, `Unavailable`: no room."""
    await store.unpin_all(INVENTORY_OWNER)
    stored = await store.put(hardware.encode(), INVENTORY_OWNER)
    digest = hardware.digest()
    assert stored.cid.digest == digest, "a document of one block has the CID of its bytes"
    return digest
