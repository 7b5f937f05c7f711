"""Performs `ArchiveRuns`: state to archive, then the event that lets the state forget."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_coordinator.adapters.history import History
from quorate_coordinator.adapters.outputs import Outputs
from quorate_coordinator.core.archived import archived
from quorate_coordinator.core.effects import ArchiveRuns
from quorate_coordinator.core.events import RunsArchived


@dataclass(frozen=True, slots=True)
class Archivist:
    """Harmless to repeat: what has left the state is in the archive, what has not is written once more, the same."""

    history: History
    outputs: Outputs
    submit: Callable[[RunsArchived], Awaitable[object]]

    async def __call__(self, effect: ArchiveRuns) -> None:
        """Until the archive has them and the state has not. `Unavailable` while the disk does not take them."""
        state = self.history.state
        runs = [archived(state, job) for job in (state.jobs.get(job_id) for job_id in effect.jobs) if job is not None]
        await asyncio.to_thread(self.history.archive.keep, runs)
        self.history.kept(runs)
        await self.submit(RunsArchived(effect.jobs))
        self.outputs.forget(runs)
