"""Performs `ArchiveRuns`: state to archive, then the event that lets the state forget."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_coordinator.core.effects import ArchiveRuns
from quorate_coordinator.core.events import RunsArchived
from quorate_coordinator.core.records.archived_run import archived
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.units import Hash32


@dataclass(frozen=True, slots=True)
class ArchiveWriter:
    """Harmless to repeat: what has left the state is in the archive, what has not is written
    once more, the same.
    """

    history: RunReader
    outputs: Outputs
    submit: Callable[[RunsArchived], Awaitable[object]]
    keep: Callable[
        [Hash32], Awaitable[None]
    ]  # a job's documents, which nobody can write any more once it has left the state

    async def __call__(self, effect: ArchiveRuns) -> None:
        """Until the archive has them and the state has not. `Unavailable` while a disk does not
        take them.
        """
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
