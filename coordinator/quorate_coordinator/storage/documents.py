"""Stores specs, terms and receipts. Each is built from the state when it is stored, so that no
effect carries a document.
"""

from dataclasses import dataclass

from quorate_content.dag.cid import Cid, Codec
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.effects import StoreReceipt, StoreSpec
from quorate_coordinator.core.money import receipts
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.units import Hash32


@dataclass(frozen=True, slots=True)
class JobDocuments:
    """Repeating does no harm, because the same job gives the same bytes.

    Raises `Unavailable` while the file takes no documents. A full file is never `Refused`, because
    the outbox does not try a refused effect again.
    """

    core: CoordinatorCore
    file: DocumentFile

    async def store_for(self, effect: StoreSpec | StoreReceipt) -> None:
        """With a spec also the terms. `store_before_leaving` stored jobs that left the state."""
        data = receipts.document(self.core.state, self.core.rules, effect)
        if data is not None:
            await self.file.put(data)
        job = self.core.state.jobs.get(effect.job_id)
        if job is None or isinstance(effect, StoreReceipt):
            return
        if not self.file.is_fresh(job.order.terms_hash):  # many orders share it
            await self.file.put(job.submission.terms.encode())

    async def store_before_leaving(self, job_id: Hash32) -> None:
        """Their time in the file begins now. Skips those stored within the last day."""
        for cid, write in list(receipts.job_documents(self.core.state, self.core.rules, job_id)):
            if not self.file.is_fresh(cid_parts(cid)[1]):
                await self.file.put(write())

    async def find(self, cid: Cid) -> bytes | None:
        """None when it is not stored. All documents are raw blocks."""
        return self.file.get(Hash32(cid.digest)) if cid.codec is Codec.RAW else None
