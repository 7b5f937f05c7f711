"""Public documents of jobs (spec, receipt): written from the state when they are stored, so that
no effect carries them.
"""

from dataclasses import dataclass

from quorate_content.dag.cid import Cid, Codec
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.effects import StoreReceipt, StoreSpec
from quorate_coordinator.core.records import receipts
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.cids import cid_parts
from quorate_protocol.units import Hash32


@dataclass(frozen=True, slots=True)
class Documents:
    """Harmless to repeat: the same job gives the same bytes. `Unavailable` while the file takes
    none; never `Refused` for want of room, because what is refused is over, and these are not.
    """

    core: CoordinatorCore
    file: DocumentFile

    async def perform(self, effect: StoreSpec | StoreReceipt) -> None:
        """Stores one document; nothing when its job has left the state, because then `keep` has
        seen to it.
        """
        data = receipts.document(self.core.state, self.core.rules, effect)
        if data is not None:
            await self.file.put(data)

    async def keep(self, job_id: Hash32) -> None:
        """Stores what is not stored yet of a job that is about to leave the state, or was long
        ago: its time begins anew.
        """
        for cid, write in list(receipts.job_documents(self.core.state, self.core.rules, job_id)):
            if not self.file.is_fresh(cid_parts(cid)[1]):
                await self.file.put(write())

    async def find(self, cid: Cid) -> bytes | None:
        """The document with this CID; all of them are raw blocks."""
        return self.file.get(Hash32(cid.digest)) if cid.codec is Codec.RAW else None
