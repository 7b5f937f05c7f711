"""Keeps the run reader up to date with the state, and deletes old runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from quorate_coordinator.base.config import Config
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.status.market_tables import MarketTables
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import Staging
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace
from quorate_runtime.process.health import Board

REFRESH_SECONDS = 2.0


@dataclass(slots=True)
class RunKeeping:
    """The places in which a finished run is stored: archive, SQL tables, run reader, content
    stores.
    """

    config: Config
    core: CoordinatorCore
    history: RunReader
    tables: MarketTables
    staging: Staging
    board: Board
    clock: Clock

    async def run(self) -> None:
        """Refreshes the run reader and deletes old runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._retention().run(), name="retention")
            while True:
                self.history.refresh()
                await self.clock.sleep(REFRESH_SECONDS)

    def _retention(self) -> Retention:
        """Removes old runs from the archive and from the tables."""
        least = max(self.config.archive.least_seconds, demanded_seconds(self.core.rules.limits))
        keeping = replace(self.config.archive, least_seconds=least)

        async def hide(over: Sequence[ArchivedRun]) -> None:
            await self.tables.forget(item.run.job_id for item in over)

        async def is_stored(digest: Hash32) -> bool:
            # Readers are served from all of the stores.
            found = [await store.resolve(digest) for store in self.staging.stores]
            return any(cid is not None for cid in found)

        return Retention(self.history, keeping, is_stored, hide, self.clock, self.board)
