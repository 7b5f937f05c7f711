"""Performs `ArchiveRuns`: writes finished runs from the state into the archive, and then submits
the event that removes them from the state.
"""

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
    """Writes runs into the archive. Repeating does no harm: a run that has left the state is in the
    archive already, and another run is written again with the same content.
    """

    history: RunReader
    outputs: Outputs
    submit: Callable[[RunsArchived], Awaitable[object]]
    keep: Callable[
        [Hash32], Awaitable[None]
    ]  # stores a job's documents, which cannot be built once the job has left the state

    async def __call__(self, effect: ArchiveRuns) -> None:
        """Returns once the archive has the runs and the state has removed them. Raises
        `Unavailable` while a disk does not take them.
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
