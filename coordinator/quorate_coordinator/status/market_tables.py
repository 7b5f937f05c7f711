"""Keeps the SQL tables up to date with the state for as long as the coordinator runs.

The market does not need them. While their database cannot be used, `health` and one log line say
why. Once it can be used, the tables catch up.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from quorate_coordinator.core.model.state import State
from quorate_coordinator.status.database import DATABASE_ERRORS, Database, is_damage
from quorate_coordinator.status.history import HistoryQuery, read_history
from quorate_coordinator.status.projection import REFRESH_ERRORS, Projection
from quorate_coordinator.status.rows import transaction_row
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_runtime.chain import send_records
from quorate_runtime.durable import FileDamaged
from quorate_runtime.process.health import Board

log = logging.getLogger(__name__)
REFRESH_SECONDS = 2.0
OBSERVE_SECONDS = 60
FORGOTTEN_MAX = 1_000_000
PROBLEM = "tables"
WRITE_ERRORS: tuple[type[Exception], ...] = (*REFRESH_ERRORS, FileDamaged)


@dataclass(slots=True)
class MarketTables:
    """One coordinator's tables. `run` writes them; `history` reads them."""

    database: Database
    state: State
    archive: FileArchive
    transactions: Path  # the file with the sends of `posting`
    posting: Address
    clock: Clock
    board: Board
    _projection: Projection | None = None
    _forgotten: dict[Hash32, None] = field(default_factory=dict)
    _has_lost_count: bool = False
    _observed_at: int = 0
    _known: set[str] = field(default_factory=set)  # purposes whose gas is in the tables

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.write()
                except WRITE_ERRORS as error:
                    # Not re-raised: `health` says it, and the next round tries again.
                    self._tell(self._explained(error))
                    await self._replace_if_damaged(error)
                else:
                    self._tell("")
                await self.clock.sleep(REFRESH_SECONDS)
        finally:
            if self._projection is not None:
                await self._projection.close()

    async def write(self) -> None:
        """Raises one of `WRITE_ERRORS` while database or archive cannot be used."""
        now = UnixSeconds(int(self.clock.now()))
        if self._projection is None:
            self._projection = await Projection.open(self.database)
        projection = self._projection
        await self._delete_forgotten(projection)
        if self._has_lost_count:
            await projection.rebuild(self.state, self.archive, now)
            self._has_lost_count = False
        await projection.refresh(self.state, self.archive, now)
        if now - self._observed_at >= OBSERVE_SECONDS or now < self._observed_at:
            await projection.observe(self.state, now)
            await self._add_transactions(projection, now)
            self._observed_at = now

    async def forget(self, jobs: Iterable[Hash32]) -> None:
        self._forgotten.update(dict.fromkeys(jobs))
        if len(self._forgotten) > FORGOTTEN_MAX:  # the database could not be used for very long
            self._forgotten.clear()
            self._has_lost_count = True

    async def history(self, query: HistoryQuery) -> MarketHistory:
        """Raises `Unavailable` while the database cannot be used."""
        if self._projection is None:
            raise Unavailable("market history: its tables are not open yet", REFRESH_SECONDS)
        try:
            return await read_history(self._projection.engine, query)
        except DATABASE_ERRORS as error:
            log.debug("market history: %s", self.database.explain(error))
            raise Unavailable(
                "market history: its tables cannot be read now; ask again later", REFRESH_SECONDS
            ) from error

    async def _delete_forgotten(self, projection: Projection) -> None:
        going = list(self._forgotten)
        if going:
            await projection.forget(going)
            for job_id in going:
                self._forgotten.pop(job_id, None)

    async def _add_transactions(self, projection: Projection, now: UnixSeconds) -> None:
        found = await asyncio.to_thread(
            send_records.mined, self.transactions, self.posting, self._known
        )
        await projection.add_transactions(
            [transaction_row(purpose, receipt, now) for purpose, receipt in found]
        )
        self._known.update(purpose for purpose, _ in found)

    async def _replace_if_damaged(self, error: Exception) -> None:
        if self._projection is None or not is_damage(error):
            return
        try:
            await self._projection.replace_file()
        except DATABASE_ERRORS as again:
            # Not re-raised: a full disk, perhaps; the next round tries again.
            log.debug("replacing the tables' file: %s", self.database.explain(again))

    def _explained(self, error: Exception) -> str:
        about = "cannot be opened" if self._projection is None else "fall behind"
        text = str(error) if isinstance(error, Unavailable) else self.database.explain(error)
        return f"they {about}: {text}"

    def _tell(self, problem: str) -> None:
        """Logs when the tables become unusable, and when they are usable again; not in between."""
        was_known = self.board.has(PROBLEM)
        self.board.put(PROBLEM, problem)
        if problem and not was_known:
            log.warning("the tables that people query: %s", problem)
        elif was_known and not problem:
            log.info("the tables that people query are written again")
