"""Performs the effects that store a job's documents, runs and lines of the log."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quorate_content.dag.cid import Cid, Codec
from quorate_coordinator.core.archived_run import ArchivedRun, archived
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.effects import (
    AppendSummary,
    ArchiveRuns,
    StoreReceipt,
    StoreSpec,
)
from quorate_coordinator.core.model.events import RunsArchived
from quorate_coordinator.core.money import receipts
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.messages import envelope
from quorate_protocol.units import Hash32

LINES_AT_ONCE_MAX = 64  # lines of the log in one transaction


@dataclass(frozen=True, slots=True)
class JobDocuments:
    """Stores specs, terms and receipts. Each is built from the state when it is stored, so that no
    effect carries a document.

    Repeating does no harm, because the same job gives the same bytes.

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


@dataclass(frozen=True, slots=True)
class ArchiveWriter:
    """The archive first, then the event that removes the runs from the state.

    Repeating does no harm: it writes the same content again.
    """

    history: RunReader
    outputs: Outputs
    submit: Callable[[RunsArchived], Awaitable[object]]
    # stores a job's documents, which cannot be built once the job has left the state
    keep: Callable[[Hash32], Awaitable[None]]
    drop: Callable[[Sequence[Hash32]], Awaitable[None]]  # deletes documents

    _waiting: dict[int, bytes] = field(default_factory=dict)  # lines of the log, by number
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, effect: ArchiveRuns | AppendSummary) -> None:
        """Raises `Unavailable` while a disk does not take it."""
        if isinstance(effect, AppendSummary):
            await self._append(effect)
        else:
            await self._keep(effect)

    async def _append(self, effect: AppendSummary) -> None:
        """With the others that wait by then: one transaction costs as much as 64."""
        seq = effect.line.message.seq
        self._waiting[seq] = envelope.encode(effect.line)
        async with self._turn:
            if seq not in self._waiting:
                return  # another call has written it
            taken = sorted(self._waiting.items(), key=lambda item: item[0] != seq)
            lines = taken[:LINES_AT_ONCE_MAX]
            await asyncio.to_thread(self.history.archive.append, lines)
            for number, _ in lines:
                self._waiting.pop(number, None)

    async def _keep(self, effect: ArchiveRuns) -> None:
        state = self.history.state
        for job_id in effect.jobs:
            await self.keep(job_id)
        runs = [
            archived(state, job)
            for job in (state.jobs.get(job_id) for job_id in effect.jobs)
            if job is not None
        ]
        await asyncio.to_thread(self.history.archive.keep, runs)
        self.history.kept(runs)
        await self.submit(RunsArchived(effect.jobs))
        self.outputs.forget(runs)
        await self._drop_unpaid(runs)

    async def _drop_unpaid(self, runs: Sequence[ArchivedRun]) -> None:
        unpaid = (run for run in runs if not run.is_paid_for)
        named = {digest for run in unpaid for digest in (run.spec_hash, run.terms_hash)}
        documents, archive = self.history.documents, self.history.archive
        gone = [
            digest
            for digest in sorted(named)
            if not documents.is_named(digest) and not archive.has_document(digest, None)
        ]
        if gone:
            await self.drop(gone)
