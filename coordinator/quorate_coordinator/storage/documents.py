"""Stores the documents of jobs: specs, terms and receipts.

It builds a document from the state when it stores it, so that no effect carries a document.
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
    """Stores and finds the specs, terms and receipts of jobs. Repeating does no harm, because the
    same job gives the same bytes.

    Raises `Unavailable` while the file takes no documents. A full file is never `Refused`, because
    the outbox does not try a refused effect again.
    """

    core: CoordinatorCore
    file: DocumentFile

    async def store_for(self, effect: StoreSpec | StoreReceipt) -> None:
        """Stores the document that an effect names, and with a spec the terms. Does nothing if the
        job has left the state: `store_before_leaving` stored it then.
        """
        data = receipts.document(self.core.state, self.core.rules, effect)
        if data is not None:
            await self.file.put(data)
        job = self.core.state.jobs.get(effect.job_id)
        if job is None or isinstance(effect, StoreReceipt):
            return
        if not self.file.is_fresh(job.submission.order.message.terms_hash):  # many orders share it
            await self.file.put(job.submission.terms.encode())

    async def store_before_leaving(self, job_id: Hash32) -> None:
        """Stores the documents of a job that is about to leave the state, so that their time in the
        file begins now. Skips those that were stored within the last day.
        """
        for cid, write in list(receipts.job_documents(self.core.state, self.core.rules, job_id)):
            if not self.file.is_fresh(cid_parts(cid)[1]):
                await self.file.put(write())

    async def find(self, cid: Cid) -> bytes | None:
        """Returns the document with this CID; None when it is not stored. All documents are raw
        blocks.
        """
        return self.file.get(Hash32(cid.digest)) if cid.codec is Codec.RAW else None
