"""Writes the SQL tables from state and archive, and notes how far it has come.

The coordinator never decides by these tables. Losing the database loses only what was observed:
earlier supply and prices, cases that the state has deleted, and gas.
"""

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from alembic.util import CommandError
from sqlalchemy import Table, delete, select, update
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from quorate_coordinator.core.model.entities import Job, Provider
from quorate_coordinator.core.model.state import State
from quorate_coordinator.status import migrations, volume
from quorate_coordinator.status.database import (
    DATABASE_ERRORS,
    Database,
    database_of,
    is_damage,
    upsert,
)
from quorate_coordinator.status.migrations.models import (
    SUPPLY_COLUMNS,
    VOLUME_COLUMNS,
    Base,
    CaseRow,
    MarketPeriod,
    PoolRow,
    Progress,
    ProviderRow,
    Run,
    TransactionRow,
)
from quorate_coordinator.status.rows import Row, batched, case_row, class_row, provider_row, run_row
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.messages.classes import Pool
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_runtime.files import private_file
from quorate_runtime.process.shield import finish_before_cancel

CLASSES_MAX = 1_024  # in one observation, those with the most slots


@dataclass(slots=True)
class ClassSupply:
    """One pool: slots by price, and how many providers offer it."""

    pool: Pool
    providers: int = 0
    slots_by_price: Counter[int] = field(default_factory=Counter)

    @property
    def slots(self) -> int:
        return self.slots_by_price.total()

    def price_at(self, percent: int) -> int:
        """The lowest price at or below which at least `percent` of the slots are on offer."""
        needed = -(-self.slots * percent // 100)
        reached = 0
        for price in sorted(self.slots_by_price):
            reached += self.slots_by_price[price]
            if reached >= needed:
                return price
        raise AssertionError("a class is made of at least one slot")


@dataclass(slots=True)
class Supply:
    """The supply of all classes. The caller adds one provider after the other."""

    by_class: dict[str, ClassSupply] = field(default_factory=dict)

    def add(self, provider: Provider, at: UnixSeconds) -> None:
        if provider.offer is None or not provider.is_alive(at):
            return
        counted = set()
        for slot in provider.offer.slots:
            price = slot.price
            if not price or not slot.count:
                continue
            name = slot.pool.id().hex()
            found = self.by_class.setdefault(name, ClassSupply(slot.pool))
            found.slots_by_price[price] += slot.count
            found.providers += name not in counted
            counted.add(name)

    def rows(self) -> list[dict[str, object]]:
        largest = sorted(self.by_class.items(), key=lambda item: -item[1].slots)[:CLASSES_MAX]
        return [
            {
                "pool": name,
                "slots": found.slots,
                "providers": found.providers,
                "price_least": min(found.slots_by_price),
                "price_median": found.price_at(50),
                "price_p90": found.price_at(90),
            }
            for name, found in largest
        ]


log = logging.getLogger(__name__)
ONLY = "runs"
PAGE = 500
PROVIDERS_PER_SLICE = 500  # looked at before the event loop gets its turn
KEPT_SECONDS = 400 * volume.DAY_SECONDS  # of supply, prices and volume
RETRY_SECONDS = 5.0
P = ParamSpec("P")
T = TypeVar("T")
REFRESH_ERRORS: tuple[type[Exception], ...] = (*DATABASE_ERRORS, Unavailable)
"""What a refresh raises while database or archive are away."""


def _table(model: type[Base]) -> Table:
    found = model.__table__
    assert isinstance(found, Table), "no model is a join or an alias"
    return found


runs, providers, periods = _table(Run), _table(ProviderRow), _table(MarketPeriod)
classes, cases, transactions = _table(PoolRow), _table(CaseRow), _table(TransactionRow)
progress = _table(Progress)
COMPARED = ("job_id", "created_at", "pool", "ending", *volume.COUNTED)
"""Columns of a run that its periods' volume depends on."""


def shielded(
    method: Callable[P, Coroutine[object, object, T]],
) -> Callable[P, Coroutine[object, object, T]]:
    """Lets a method that has begun finish before its caller is cancelled.

    A cancellation that reaches SQLAlchemy between two statements may be lost there. A coordinator
    that was told to stop would then never stop.
    """

    @functools.wraps(method)
    async def whole(*arguments: P.args, **named: P.kwargs) -> T:
        return await finish_before_cancel(method(*arguments, **named))

    return whole


@dataclass(slots=True)
class _Followed:
    jobs: set[Hash32]
    providers: set[Address]
    cases: set[Hash32]
    payees: set[Address]  # whose money changed: a provider's row shows it

    @classmethod
    def of(cls, state: State) -> "_Followed":
        owners = state.providers.follow()
        return cls(state.jobs.follow(), owners, state.cases.follow(), state.payees.follow())

    def add_all(self, state: State) -> None:
        self.put_back(_Followed({*state.jobs}, {*state.providers}, {*state.cases}, set()))

    def take(self) -> "_Followed":
        taken = _Followed({*self.jobs}, self.providers | self.payees, {*self.cases}, set())
        for kept in (self.jobs, self.providers, self.cases, self.payees):
            kept.clear()
        return taken

    def put_back(self, taken: "_Followed") -> None:
        self.jobs |= taken.jobs
        self.providers |= taken.providers
        self.cases |= taken.cases


@dataclass(slots=True)
class Projection:
    """The tables in one database. `refresh` writes what changed; `rebuild` starts from nothing.

    Methods raise one of `DATABASE_ERRORS` while the database cannot be used.
    """

    database: Database
    engine: AsyncEngine
    followed: _Followed | None = None  # before the first refresh
    is_whole: bool = True  # False: emptied since, so all of the state is to be written

    @classmethod
    async def open(cls, database: Database | Path) -> "Projection":
        """Brings the tables to this program's revision.

        A SQLite file that is damaged, or that a newer program has migrated, is replaced, because no
        decision depends on it. A PostgreSQL database is never emptied. Raises `Unavailable`, which
        says why it cannot be used.
        """
        if isinstance(database, Path):
            database = database_of(f"sqlite+aiosqlite:///{database}", database.parent)
        made = cls(database, database.engine())
        try:
            await made._open()
        except BaseException:
            await made.close()
            raise
        return made

    async def _open(self) -> None:
        name = self.database.name
        try:
            self._make_private()
            if await self.migrate():
                return
            why = "a newer program has migrated it"
        except (DatabaseError, CommandError) as error:
            if isinstance(error, DatabaseError) and not is_damage(error):
                raise
            why = f"it is damaged ({error})"
        if self.database.path is None:
            raise Unavailable(
                f"{name}: {why}; start the newer program, or name an empty database by --database",
                RETRY_SECONDS,
            )
        log.warning("replacing the tables' file %s by a new one: %s", name, why)
        await self.replace_file()

    def _make_private(self) -> None:
        if self.database.path is not None:
            private_file(self.database.path)

    @shielded
    async def replace_file(self) -> None:
        """The next `refresh` fills the new, empty tables."""
        path = self.database.path
        assert path is not None, "a PostgreSQL database is never replaced"
        await self.engine.dispose()
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        self._make_private()
        self.engine, self.is_whole = self.database.engine(), False
        assert await self.migrate(), "the file was just made"

    @shielded
    async def migrate(self) -> bool:
        """Returns False if this program does not know the tables' revision."""
        async with self.engine.begin() as connection:
            if not await connection.run_sync(migrations.is_known):
                return False
            await connection.run_sync(migrations.upgrade)
        return True

    @shielded
    async def close(self) -> None:
        await self.engine.dispose()

    async def offset(self) -> int:
        """The number of the newest job event that the tables show."""
        query = select(progress.c.event_seq).where(progress.c.name == ONLY)
        async with self.engine.connect() as connection:
            found = (await connection.execute(query)).scalar()
        return int(found or 0)

    @shielded
    async def refresh(self, state: State, archive: FileArchive, now: int = 0) -> int:
        """Writes what has changed in the state, and what the archive got after the offset. Returns
        the new offset. `now` is recorded for new cases.

        The first refresh of a process writes everything in the state. Raises `Unavailable` while
        the archive cannot be read.
        """
        since, newest = await self.offset(), int(state.event_seq)
        if since > newest:  # tables of another journal, or of a newer state of this one
            return await self.rebuild(state, archive, now)
        if self.followed is None:
            self.followed = _Followed.of(state)
        if not self.is_whole:
            self.followed.add_all(state)
        taken = self.followed.take()
        try:
            await self._write(_Changes.of(state, archive, since, taken, now), newest)
        except REFRESH_ERRORS:
            self.followed.put_back(taken)
            raise
        self.is_whole = True
        return newest

    async def _write(self, changes: "_Changes", newest: int) -> None:
        async with self.engine.begin() as connection:
            await upsert(connection, providers, changes.providers)
            await upsert(connection, classes, changes.classes)
            kept = tuple(column.name for column in cases.columns if column.name != "seen_at")
            await upsert(connection, cases, changes.cases, changes=kept[1:])
            for page in batched(changes.runs, PAGE):
                await _write_runs(connection, page)
            await upsert(connection, progress, [{"name": ONLY, "event_seq": newest}])

    @shielded
    async def rebuild(self, state: State, archive: FileArchive, now: int = 0) -> int:
        """Observations stay."""
        async with self.engine.begin() as connection:
            for table in (runs, providers, progress):
                await connection.execute(delete(table))
            await connection.execute(update(periods).values(dict.fromkeys(VOLUME_COLUMNS, 0)))
        self.is_whole = False
        return await self.refresh(state, archive, now)

    @shielded
    async def forget(self, jobs: Sequence[Hash32]) -> None:
        """Their share of the volume stays."""
        async with self.engine.begin() as connection:
            for start in range(0, len(jobs), PAGE):
                names = [job_id.hex() for job_id in jobs[start : start + PAGE]]
                await connection.execute(delete(runs).where(runs.c.job_id.in_(names)))

    @shielded
    async def observe(self, state: State, now: UnixSeconds) -> None:
        """Unless the period has an observation with more slots. Deletes periods that are too
        old.
        """
        supply = Supply()
        for number, provider in enumerate(list(state.providers.values())):
            supply.add(provider, now)
            if number % PROVIDERS_PER_SLICE == 0:
                await asyncio.sleep(0)
        observed = supply.rows()
        pools = [class_row(found.pool) for found in supply.by_class.values()]
        async with self.engine.begin() as connection:
            for page in batched(pools, PAGE):
                await upsert(connection, classes, page)
            for unit, seconds in volume.UNITS.items():
                key = {"unit": unit, "start": now - now % seconds}
                for page in batched(({**key, **row} for row in observed), PAGE):
                    await upsert(
                        connection, periods, page, changes=SUPPLY_COLUMNS, if_not_less="slots"
                    )
            await connection.execute(delete(periods).where(periods.c.start < now - KEPT_SECONDS))

    @shielded
    async def add_transactions(self, rows: list[Row]) -> None:
        async with self.engine.begin() as connection:
            await upsert(connection, transactions, rows)

    async def recent(self, client: str, limit: int = 100) -> list[dict[str, object]]:
        """`client`: hex without 0x."""
        query = (
            select(runs)
            .where(runs.c.client == client)
            .order_by(runs.c.created_at.desc())
            .limit(limit)
        )
        async with self.engine.connect() as connection:
            return [dict(row._mapping) for row in await connection.execute(query)]


@dataclass(frozen=True, slots=True)
class _Changes:
    """`runs` reads the archive while it is consumed."""

    runs: Iterator[Row]
    providers: list[Row]
    cases: list[Row]
    classes: list[Row]

    @classmethod
    def of(
        cls, state: State, archive: FileArchive, since: int, taken: _Followed, now: int
    ) -> "_Changes":
        jobs = [job for job in (state.jobs.get(job_id) for job_id in taken.jobs) if job is not None]
        pools: dict[Pool, None] = dict.fromkeys(job.pool for job in jobs)
        return cls(
            _run_rows(archive, since, jobs),
            [provider_row(state, owner) for owner in taken.providers if owner in state.providers],
            [case_row(state.cases[key], now) for key in taken.cases if key in state.cases],
            [class_row(pool) for pool in pools],
        )


def _run_rows(archive: FileArchive, since: int, jobs: Iterable[Job]) -> Iterator[Row]:
    """A run that is in archive and state has the same row in both."""
    while page := archive.since(since, PAGE):
        since = page[-1][0]
        for _, row in page:
            yield {**row}
    for job in jobs:
        yield run_row(job)


async def _write_runs(connection: AsyncConnection, page: list[Row]) -> None:
    rows = {row["job_id"]: row for row in page}
    query = select(*(runs.c[name] for name in COMPARED)).where(runs.c.job_id.in_(list(rows)))
    before = [dict(row._mapping) for row in await connection.execute(query)]
    await upsert(connection, runs, list(rows.values()))
    changes = volume.changes_of(before, rows.values())
    if changes:
        await upsert(connection, periods, await _added(connection, changes), changes=VOLUME_COLUMNS)


async def _added(
    connection: AsyncConnection, changes: dict[volume.PeriodKey, dict[str, int]]
) -> list[Row]:
    """Python adds the volume, because amounts have 128 bits."""
    keys = ("unit", "start", "pool")
    columns = [periods.c[name] for name in (*keys, *VOLUME_COLUMNS)]
    query = select(*columns).where(
        periods.c.start.in_({start for _, start, _ in changes}),
        periods.c.pool.in_({name for _, _, name in changes}),
    )
    known: dict[volume.PeriodKey, dict[str, int]] = {}
    for row in await connection.execute(query):
        values = dict(row._mapping)
        key = str(values.pop("unit")), int(values.pop("start")), str(values.pop("pool"))
        known[key] = values
    return [
        {
            **dict(zip(keys, key, strict=True)),
            **{name: known.get(key, {}).get(name, 0) + change[name] for name in VOLUME_COLUMNS},
        }
        for key, change in changes.items()
    ]
