"""Performs `ArchiveRuns` and `AppendSummary`: the archive first, then the event that removes the
runs from the state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quorate_coordinator.core.archived_run import ArchivedRun, archived
from quorate_coordinator.core.model.effects import AppendSummary, ArchiveRuns
from quorate_coordinator.core.model.events import RunsArchived
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.messages import envelope
from quorate_protocol.units import Hash32

LINES_AT_ONCE_MAX = 64  # lines of the log in one transaction


@dataclass(frozen=True, slots=True)
class ArchiveWriter:
    """Repeating does no harm: it writes the same content again."""

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
