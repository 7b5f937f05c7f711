"""Stores the public documents of jobs (spec, receipt). They are built from the state when they are
stored, so that no effect carries them.
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
    """Stores and finds documents. Repeating is harmless, because the same job gives the same bytes.

    `Unavailable` while the file takes none. A full file is never `Refused`, because a refused
    effect is not tried again.
    """

    core: CoordinatorCore
    file: DocumentFile

    async def perform(self, effect: StoreSpec | StoreReceipt) -> None:
        """Stores one document. Does nothing when its job has left the state, because `keep` stored
        it before that.
        """
        data = receipts.document(self.core.state, self.core.rules, effect)
        if data is not None:
            await self.file.put(data)

    async def keep(self, job_id: Hash32) -> None:
        """Stores the documents of a job that is about to leave the state, unless they were stored
        within the last day. Their time to be kept starts now.
        """
        for cid, write in list(receipts.job_documents(self.core.state, self.core.rules, job_id)):
            if not self.file.is_fresh(cid_parts(cid)[1]):
                await self.file.put(write())

    async def find(self, cid: Cid) -> bytes | None:
        """Returns the document with this CID; all documents are raw blocks."""
        return self.file.get(Hash32(cid.digest)) if cid.codec is Codec.RAW else None
