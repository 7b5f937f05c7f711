"""What people query: SQL tables that are a projection of the state, with an offset, rebuilt at
will. The journal decides, never these.

Rows are upserted from what changed in the state and what came into the archive; losing the file
loses nothing.
"""

import functools
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

from alembic.util import CommandError
from sqlalchemy import BigInteger, Integer, MetaData, String, Table, delete, event, select
from sqlalchemy import Column as SqlColumn
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from quorate_coordinator.core.state import Decided, Job, State
from quorate_coordinator.reporting import migrations
from quorate_coordinator.storage.archive import RunArchive
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.process.shield import ended_first
from quorate_runtime.sqlite.durable import SMALL_CACHE, is_of_the_world

log = logging.getLogger(__name__)
metadata = MetaData()
runs = Table(
    "runs",
    metadata,
    SqlColumn("job_id", String(64), primary_key=True),
    SqlColumn("client", String(40), index=True, nullable=False),
    SqlColumn("name", String(63), nullable=False),
    SqlColumn("phase", String(16), index=True, nullable=False),
    SqlColumn("rule", String(16), nullable=False),
    SqlColumn("outcome", String(16)),
    SqlColumn("executions", Integer, nullable=False),
    SqlColumn("charged", String(39), nullable=False),
    SqlColumn("created_at", BigInteger, index=True, nullable=False),
    SqlColumn("receipt_cid", String(80)),
)
providers = Table(
    "providers",
    metadata,
    SqlColumn("owner", String(40), primary_key=True),
    SqlColumn("region", String(64), nullable=False),
    SqlColumn("final", String(39), nullable=False),
    SqlColumn("held", String(39), nullable=False),
    SqlColumn("faults", Integer, nullable=False),
    SqlColumn("is_frozen", Integer, nullable=False),
)
progress = Table(
    "progress",
    metadata,
    SqlColumn("name", String(16), primary_key=True),
    SqlColumn("event_seq", BigInteger, nullable=False),
)
ONLY = "runs"
PAGE = 500
RETRY_SECONDS = 5.0


P = ParamSpec("P")
T = TypeVar("T")


def to_its_end(
    method: Callable[P, Coroutine[object, object, T]],
) -> Callable[P, Coroutine[object, object, T]]:
    """What it has begun it ends, and its caller is cancelled afterwards: a cancellation that
    meets SQLAlchemy between two statements may be lost there, and a coordinator that was told to
    stop would then wait for ever.
    """

    @functools.wraps(method)
    async def whole(*arguments: P.args, **named: P.kwargs) -> T:
        return await ended_first(method(*arguments, **named))

    return whole


@dataclass(slots=True)
class Projection:
    """One SQLite file. `refresh` writes what changed since the last time; `rebuild` starts anew."""

    path: Path
    engine: AsyncEngine
    changed: tuple[set[Hash32], set[Address]] | None = (
        None  # jobs and providers; None before the first refresh
    )
    is_whole: bool = True  # False: it was emptied since, so all of the state is to be written

    @classmethod
    async def open(cls, path: Path) -> "Projection":
        """Opens or makes the file and migrates its tables. A file that is damaged, or that a
        newer program has migrated, is made anew: it holds nothing that the state does not.
        SQLAlchemyError while it cannot be used (a full disk, no descriptors).
        """
        made = cls(path, _engine(path))
        try:
            try:
                if await made.migrate():
                    return made
                log.warning("%s was migrated by a newer program: made anew", path)
            except (DatabaseError, CommandError) as error:
                if isinstance(error, DatabaseError) and not is_damage(error):
                    raise
                log.warning("%s is damaged and is made anew: %s", path, error)
            await made.begin_anew()
        except BaseException:
            await made.close()
            raise
        return made

    @to_its_end
    async def begin_anew(self) -> None:
        """Empty tables in a new file; the next `refresh` fills them."""
        await self.engine.dispose()
        for suffix in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.engine, self.is_whole = _engine(self.path), False
        assert await self.migrate(), "a file of our own making"

    @to_its_end
    async def migrate(self) -> bool:
        """Brings the tables to this program's revision; False when they are of one that it does
        not know.
        """
        async with self.engine.begin() as connection:
            if not await connection.run_sync(migrations.is_known):
                return False
            await connection.run_sync(migrations.upgrade)
        return True

    @to_its_end
    async def close(self) -> None:
        """Ends all connections."""
        await self.engine.dispose()

    async def offset(self) -> int:
        """Newest job event that the tables show."""
        async with self.engine.connect() as connection:
            found = (
                await connection.execute(
                    select(progress.c.event_seq).where(progress.c.name == ONLY)
                )
            ).scalar()
        return int(found or 0)

    @to_its_end
    async def refresh(self, state: State, archive: RunArchive) -> int:
        """Upserts what changed since the last time in the state, and what the archive got since
        the offset; returns the new offset.

        The first one of a process takes everything in the state: what changed before is not
        known any more.
        """
        since, newest = await self.offset(), int(state.event_seq)
        if since > newest:
            return await self.rebuild(
                state, archive
            )  # of another journal, or of a newer state of this one
        if self.changed is None:
            self.changed = state.jobs.follow(), state.providers.follow()
        if not self.is_whole:
            self.changed[0].update(state.jobs.keys())
            self.changed[1].update(state.providers.keys())
        jobs, owners = set(self.changed[0]), set(self.changed[1])
        self.changed[0].clear()
        self.changed[1].clear()
        try:
            await self._write(
                _rows(state, archive, since, jobs),
                [provider_row(state, owner) for owner in owners],
                newest,
            )
        except (SQLAlchemyError, Unavailable):
            self.changed[0].update(jobs)
            self.changed[1].update(owners)
            raise
        self.is_whole = True
        return newest

    async def _write(
        self, rows: Iterable[dict[str, object]], owners: list[dict[str, object]], newest: int
    ) -> None:
        async with self.engine.begin() as connection:
            await _upsert(connection, providers, owners)
            for page in batched(rows, PAGE):
                await _upsert(connection, runs, page)
            mark = insert(progress).values(name=ONLY, event_seq=newest)
            await connection.execute(
                mark.on_conflict_do_update(index_elements=["name"], set_={"event_seq": newest})
            )

    @to_its_end
    async def rebuild(self, state: State, archive: RunArchive) -> int:
        """Empties the tables and fills them from state and archive."""
        async with self.engine.begin() as connection:
            for table in (runs, providers, progress):
                await connection.execute(delete(table))
        self.is_whole = False
        return await self.refresh(state, archive)

    @to_its_end
    async def forget(self, jobs: Sequence[Hash32]) -> None:
        """Takes out runs that the archive lets go of. `Unavailable` while the file does not take
        it.
        """
        try:
            async with self.engine.begin() as connection:
                await connection.execute(
                    delete(runs).where(runs.c.job_id.in_([job_id.hex() for job_id in jobs]))
                )
        except SQLAlchemyError as error:
            raise Unavailable(f"the tables fall behind: {error}", RETRY_SECONDS) from error

    async def recent(self, client: str, limit: int = 100) -> list[dict[str, object]]:
        """A client's newest runs (account as hex without 0x)."""
        query = (
            select(runs)
            .where(runs.c.client == client)
            .order_by(runs.c.created_at.desc())
            .limit(limit)
        )
        async with self.engine.connect() as connection:
            return [dict(row._mapping) for row in await connection.execute(query)]


def is_damage(error: SQLAlchemyError) -> bool:
    """Whether the file, and not the world around it, is what is wrong."""
    cause = error.orig if isinstance(error, DatabaseError) else None
    return isinstance(cause, sqlite3.DatabaseError) and not is_of_the_world(cause)


def _engine(path: Path) -> AsyncEngine:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    event.listen(
        engine.sync_engine, "connect", lambda connection, _: connection.execute(SMALL_CACHE)
    )
    return engine


async def _upsert(
    connection: AsyncConnection, table: Table, values: Sequence[dict[str, object]]
) -> None:
    if values:
        await connection.execute(_upserting(table), list(values))


@functools.cache  # SQLAlchemy's copy of a table's columns refers to itself
def _upserting(table: Table) -> Insert:
    statement = insert(table)
    keys = [column.name for column in table.primary_key]
    changes = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=changes)


def _rows(
    state: State, archive: RunArchive, since: int, changed: set[Hash32]
) -> Iterator[dict[str, object]]:
    """What the archive got, then what the state has: a run that is in both looks the same in
    both.
    """
    while page := archive.since(since, PAGE):
        since = page[-1][0]
        for _, row in page:
            yield {**row}
    for job_id in changed:
        job = state.jobs.get(job_id)
        if job is not None:
            yield run_row(job)


def batched(rows: Iterable[dict[str, object]], size: int) -> Iterator[list[dict[str, object]]]:
    """Rows in lists of at most `size`."""
    left = iter(rows)
    while page := list(islice(left, size)):
        yield page


def run_row(job: Job) -> dict[str, object]:
    """A run's row."""
    verdict = job.phase.verdict.message if isinstance(job.phase, Decided) else None
    return {
        "job_id": job.id.hex(),
        "client": job.submission.order.message.client.hex(),
        "name": job.submission.spec.name,
        "phase": type(job.phase).__name__.lower(),
        "rule": job.ack.message.rule.name.lower(),
        "outcome": verdict.outcome.name.lower() if verdict else None,
        "executions": sum(len(batch.members) for batch in job.batches),
        "charged": str(
            job.split.charged
        ),  # decimal text: an amount has up to 128 bits, SQLite's integers have 64
        "created_at": job.created_at,
        "receipt_cid": job.receipt_cid,
    }


def provider_row(state: State, owner: Address) -> dict[str, object]:
    """A provider's row."""
    provider = state.providers[owner]
    return {
        "owner": owner.hex(),
        "region": provider.offer.region[:64] if provider.offer else "",
        "final": str(provider.final),
        "held": str(provider.held),
        "faults": len(state.faults.get(provider.owner) or ()),
        "is_frozen": int(provider.is_frozen),
    }
