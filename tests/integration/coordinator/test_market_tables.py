"""Tests the market's tables on SQLite and on PostgreSQL.

The tests cover migrations, exact sums, history, the report, and an unavailable database.
"""

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from quorate_coordinator.cli import report_command
from quorate_coordinator.core.model.accusations import Case
from quorate_coordinator.status import volume
from quorate_coordinator.status.database import DATABASE_ERRORS, Database, database_of, is_damage
from quorate_coordinator.status.history import HistoryQuery, query_of, read_history
from quorate_coordinator.status.market_tables import REFRESH_SECONDS, MarketTables
from quorate_coordinator.status.migrations.models import VOLUME_COLUMNS, Base
from quorate_coordinator.status.projection import Projection, cases, periods, providers, runs
from quorate_coordinator.status.report import read_report
from quorate_coordinator.status.rows import transaction_row
from quorate_protocol.messages.market_history import MarketHistory
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.chain.types import Receipt
from quorate_runtime.process.health import Board
from support.markets.archiving_market import ArchivingMarket
from support.markets.coordinator_stage import Stage, running, until
from support.markets.scripted_market import CPUS, Party
from support.memory_archive import MemoryArchive
from support.postgres_server import PostgresServer, postgres_server
from support.virtual_clock import VirtualClock

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]
CLASS = CPUS.id().hex()
LARGE = 2**100 + 1  # too large for an integer of SQLite and for a float


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


@pytest.fixture(params=BOTH)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Returns an empty database, one of each kind."""
    if request.param == "sqlite":
        return database_of("", tmp_path)
    server: PostgresServer = request.getfixturevalue("server")
    name = f"market_{abs(hash(tmp_path)) % 10**12}"
    return database_of(server.create_database(name), tmp_path)


@pytest.fixture
async def tables(database: Database) -> AsyncIterator[Projection]:
    made = await Projection.open(database)
    yield made
    await made.close()


def a_market() -> ArchivingMarket:
    return ArchivingMarket(*(Party(number) for number in range(5)))


async def volumes(tables: Projection) -> dict[tuple[str, int, str], dict[str, int]]:
    """Returns the volume columns of all periods that have jobs."""
    async with tables.engine.connect() as connection:
        rows = (await connection.execute(select(periods).where(periods.c.jobs > 0))).mappings()
        return {
            (row["unit"], row["start"], row["pool"]): {name: row[name] for name in VOLUME_COLUMNS}
            for row in rows
        }


async def recomputed(tables: Projection) -> dict[tuple[str, int, str], dict[str, int]]:
    """Returns the same columns, computed from all runs."""
    async with tables.engine.connect() as connection:
        rows = [dict(row) for row in (await connection.execute(select(runs))).mappings()]
    return volume.changes_of((), rows)


# ---- migrations


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, Base.metadata))


async def test_migrations_lead_to_the_declared_tables(tables: Projection) -> None:
    async with tables.engine.connect() as connection:
        assert await connection.run_sync(_differences) == []


async def test_an_amount_of_128_bits_is_read_back_exactly(tables: Projection) -> None:
    row = {"owner": "aa", "region": "", "final": 2**128 - 1, "held": 0}
    row |= dict.fromkeys(("vouched", "paid", "locked"), 0)
    async with tables.engine.begin() as connection:
        await connection.execute(providers.insert().values(**row, faults=0))
        assert (await connection.execute(select(providers.c.final))).scalar() == 2**128 - 1


# ---- a file that is damaged, or in use

RUINS = {
    "garbage": "",
    "newer": "update alembic_version set version_num = '9999';"
    "insert into providers values('cc','eu','5','6','0','0','0',0)",
    "killed half way": "drop table providers; drop table alembic_version;"
    "create table _alembic_tmp_runs(job_id varchar(64))",
    "two at once": "insert into alembic_version values('0000')",
}


@pytest.mark.parametrize("ruin", RUINS)
async def test_a_file_that_cannot_be_used_is_replaced(
    tmp_path: Path, ruin: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "market.sqlite"
    await (await Projection.open(path)).close()
    if ruin == "garbage":
        path.write_bytes(b"this is no database" * 500)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(RUINS[ruin])
    made = await Projection.open(path)
    assert "replacing the tables' file" in caplog.text
    async with made.engine.connect() as shown:
        assert await shown.run_sync(_differences) == []
        assert (await shown.execute(select(providers))).all() == []
    await made.close()


async def test_a_file_that_cannot_be_opened_now_is_not_replaced(tmp_path: Path) -> None:
    """Missing descriptors, a full disk or missing rights do not mean that the file is broken."""
    await (await Projection.open(tmp_path / "market.sqlite")).close()
    before = (tmp_path / "market.sqlite").read_bytes()
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert not is_damage(OperationalError("select 1", (), error)) and not is_damage(
        SQLAlchemyError("no cause")
    )
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    assert is_damage(OperationalError("select 1", (), error))
    (tmp_path / "market.sqlite").rename(tmp_path / "kept")
    (tmp_path / "market.sqlite").mkdir()
    with pytest.raises(OperationalError, match="unable to open"):
        await Projection.open(tmp_path / "market.sqlite")
    assert (tmp_path / "kept").read_bytes() == before
    async with asyncio.timeout(10):
        while any("_connection_worker" in thread.name for thread in threading.enumerate()):
            await asyncio.sleep(
                0.01
            )  # aiosqlite's thread of the failed attempt reports its end to this loop


async def test_tables_that_are_lost_at_run_time_are_filled_again(tmp_path: Path) -> None:
    market = a_market()
    job_id, archive = market.order(0, 1), MemoryArchive()
    client = market.core.state.jobs[job_id].submission.order.message.client.hex()
    made = await Projection.open(tmp_path / "market.sqlite")
    await made.refresh(market.core.state, archive)
    rows = await made.recent(client)
    async with made.engine.begin() as connection:
        await connection.execute(text("drop table runs"))
    followers = len(market.core.state.jobs._followers)
    market.order(0, 2)
    for _ in range(2):
        with pytest.raises(OperationalError) as broken:
            await made.refresh(market.core.state, archive)
    assert is_damage(broken.value)
    await made.replace_file()
    await made.refresh(market.core.state, archive)
    assert len(rows) == 1 and len(await made.recent(client)) == 2
    await made.rebuild(market.core.state, archive)
    assert (
        len(await made.recent(client)) == 2 and len(market.core.state.jobs._followers) == followers
    ), "no follower is left behind"
    await made.close()


async def test_a_refresh_that_is_cancelled_finishes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy sometimes lost a cancellation between two statements. A coordinator that had to
    stop then never stopped.
    """
    begun, written = asyncio.Event(), list[int]()

    async def write(self: Projection, changes: object, newest: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            return  # the cancellation is lost here
        written.append(newest)

    made = await Projection.open(tmp_path / "market.sqlite")
    monkeypatch.setattr(Projection, "_write", write)
    market = a_market()
    task = asyncio.create_task(made.refresh(market.core.state, MemoryArchive()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(written) == 1, "what was begun is ended first"
    await made.close()


# ---- what the tables show


async def test_volume_equals_the_sum_of_runs_at_every_moment(tables: Projection) -> None:
    """Runs change many times and move into the archive. The volume counts each change once."""
    market = a_market()
    jobs = []
    for number in range(4):
        jobs.append(market.order(number % 2, number + 1))
        await tables.refresh(market.core.state, market.archive)
        market.beat()
        await tables.refresh(market.core.state, market.archive)
        assert await volumes(tables) == await recomputed(tables)
    market.until_archived(*jobs)
    await tables.refresh(market.core.state, market.archive)
    found = await volumes(tables)
    assert found == await recomputed(tables)
    hour = next(value for (unit, _, _), value in found.items() if unit == "hour")
    charged = sum(run.run.charged for run in market.archive.by_id.values())
    assert hour["jobs"] == hour["accepted"] == 4 and hour["charged"] == charged > 0
    assert hour["executions"] == 8 and hour["audits"] == 4 and 0 < hour["fee"] < charged
    await tables.rebuild(market.core.state, market.archive)
    assert await volumes(tables) == found


async def test_sums_beyond_64_bits_are_exact(tables: Projection) -> None:
    market = a_market()
    jobs = [market.order(0, number + 1) for number in range(3)]
    market.until_decided(*jobs)
    with market.core.state.transaction():
        for job_id in jobs:
            job = market.job(job_id)
            large = Amount(LARGE)
            split = replace(job.split, charged=large, fee=large, fund=Amount(0), credits=())
            market.core.state.jobs[job_id] = replace(job, split=split)
    await tables.refresh(market.core.state, MemoryArchive())
    for found in (await volumes(tables)).values():
        assert found["charged"] == found["fee"] == 3 * LARGE
    history = await read_history(tables.engine, HistoryQuery("day", 0, market.at + 1))
    assert history.periods[0].charged == 3 * LARGE
    assert (await read_report(tables.engine, 0, market.at + 1)).figures["fee"] == 3 * LARGE


async def test_orders_that_expire_unmatched_and_stopped_ones_are_counted(
    tables: Projection,
) -> None:
    market = a_market()
    for party in market.parties.values():
        party.is_deaf = True
    job_id = market.order(0, 1)
    await tables.refresh(market.core.state, market.archive)
    while not market.core.state.finished and job_id in market.core.state.jobs:
        market.beat()
        assert market.at < 10_000
    await tables.refresh(market.core.state, market.archive)
    found = (await read_report(tables.engine, 0, market.at + 1)).demand
    assert [(row.pool_id, row.jobs, row.unmatched) for row in found] == [(CLASS, 1, 1)]
    assert found[0].pool == CPUS


async def test_the_volume_keeps_counting_runs_that_the_archive_deletes(tables: Projection) -> None:
    market = a_market()
    jobs = [market.order(number % 2, number + 1) for number in range(3)]
    market.until_archived(*jobs)
    await tables.refresh(market.core.state, market.archive)
    before = await volumes(tables)
    await tables.forget(jobs[:2])
    await tables.refresh(market.core.state, market.archive)
    async with tables.engine.connect() as connection:
        assert list(await connection.scalars(select(runs.c.job_id))) == [jobs[2].hex()]
    assert await volumes(tables) == before


async def test_a_period_shows_the_largest_number_of_slots(tables: Projection) -> None:
    market = a_market()
    state, at = market.core.state, UnixSeconds(market.at)
    await tables.observe(state, at)
    with state.transaction():
        for number, (owner, provider) in enumerate(list(state.providers.items())):
            assert provider.offer is not None
            slot = replace(provider.offer.slots[0], on_demand=(number + 1) * 1_000)
            state.providers[owner] = replace(provider, offer=replace(provider.offer, slots=(slot,)))
    await tables.observe(state, at)
    with state.transaction():
        for owner in list(state.providers)[1:]:
            state.providers[owner] = replace(state.providers[owner], alive_until=UnixSeconds(0))
    await tables.observe(state, at)
    for unit in ("hour", "day"):
        (row,) = (await read_history(tables.engine, HistoryQuery(unit, 0, at + 1))).periods
        assert (row.slots, row.providers, row.pool, row.jobs) == (5, 5, CPUS, 0)
        assert row.prices is not None
        prices = row.prices.least, row.prices.median, row.prices.p90
        assert prices == (1_000, 3_000, 5_000), "as many slots as before: the newer prices"
    later = UnixSeconds(at + 401 * volume.DAY_SECONDS)
    await tables.observe(state, later)
    assert (await read_history(tables.engine, HistoryQuery("hour", 0, later + 1))).periods == ()


async def test_a_coordinator_answers_history_from_either_database(
    stage: Stage, database: Database
) -> None:
    service = stage.service()
    url = "" if database.path else database.url.render_as_string(hide_password=False)
    service.config = replace(service.config, database=url)
    async with running(service):

        async def history(query: str = "") -> tuple[int, dict[str, Any]]:
            return await stage.get(service.url, f"market/history{query}")

        await until(history, lambda found: found[0] == 200)
        _, tree = await history("?by=day")
        assert tree["by"] == "day" and tree["periods"] == [] and tree["next"] is None
        status, tree = await history("?by=year")
        assert (status, tree["code"]) == (400, "malformed")
        _, health = await stage.get(service.url, "health")
        assert "tables" not in [item["name"] for item in health["problems"]]
    assert (stage.home / "market.sqlite").exists() == (database.path is not None)


# ---- history: which queries are allowed


async def test_history_comes_in_pages_by_period_and_class(tables: Projection) -> None:
    now = 9_000
    async with tables.engine.begin() as connection:
        rows = [
            {"unit": "hour", "start": start, "pool": name * 64, "slots": 1}
            for start in (0, 3_600, 7_200)
            for name in "ab"
        ]
        await connection.execute(periods.insert(), rows)
    query = query_of({"since": "0", "until": "7201", "limit": "4"}, now)
    page = await read_history(tables.engine, query)
    seen = page.periods
    assert len(page.periods) == 4 and page.next == f"3600-{'b' * 64}"
    query = query_of({"since": "0", "until": "7201", "after": page.next}, now)
    page = await read_history(tables.engine, query)
    seen += page.periods
    keys = [(row.start, row.pool_id.hex()[0]) for row in seen if row.slots]
    assert keys == [(start, name) for start in (0, 3_600, 7_200) for name in "ab"]
    assert page.next is None
    query = query_of({"since": "0", "until": "7201", "pool": f"0x{'b' * 64}"}, now)
    assert len((await read_history(tables.engine, query)).periods) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"by": "week"}, "by: 'week' is neither hour nor day"),
        ({"since": "soon"}, "since: 'soon' is no moment; give Unix seconds"),
        ({"until": "-1"}, "until: '-1' is no moment"),
        ({"since": "50", "until": "50"}, "since: 50 is not before until, 50; give an earlier"),
        ({"since": "0"}, "since: one request by hour covers at most 31 days;.*ask by=day"),
        ({"since": "0", "by": "day"}, "since: one request by day covers at most 400 days"),
        ({"limit": "0"}, "limit: a number from 1 to 1000"),
        ({"pool": "x86_64"}, "pool: 'x86_64' is not the id of a pool"),
        ({"after": "7"}, "after: give the `next` of the page before"),
    ],
)
def test_a_bad_query_is_refused_with_the_name_of_its_field(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence):
        query_of(given, 1_800_000_000)


def test_history_covers_the_last_seven_days_unless_told_otherwise() -> None:
    query = query_of({}, 1_800_000_123)
    assert query.until == 1_800_000_123 and query.since == 1_800_000_000 - 7 * 86_400


# ---- report


async def test_report_adds_up_disputes_and_gas(tables: Projection) -> None:
    market = a_market()
    state, at = market.core.state, market.at
    with state.transaction():
        for number, result in enumerate((True, False, None)):
            execution = Hash32(bytes([number]) * 32)
            case = Case(execution, Address(bytes(20)), None, None, case_id=execution)
            taken = Amount(LARGE if result else 0)
            state.cases[execution] = replace(case, is_convicted=result, taken=taken)
    await tables.refresh(state, market.archive, at)
    await tables.refresh(state, market.archive, at + 5_000)
    receipts = [a_receipt(21_000 + number) for number in range(2)]
    rows = [
        transaction_row(f"payroll-{number}", receipt, at) for number, receipt in enumerate(receipts)
    ]
    for _ in range(2):
        await tables.add_transactions([*rows, transaction_row("case-x/y", receipts[0], at)])
    report = await read_report(tables.engine, at, at + 1)
    found = report.figures
    assert [found[name] for name in ("opened", "convicted", "acquitted", "undecided")] == [
        3,
        1,
        1,
        1,
    ]
    assert found["taken"] == LARGE
    assert [(gas.kind, gas.transactions, gas.gas_used) for gas in report.gas] == [
        ("case", 1, 21_000),
        ("payroll", 2, 42_001),
    ]
    assert report.gas[1].cost_wei == 42_001 * 10**30
    async with tables.engine.connect() as connection:
        assert {row.seen_at for row in await connection.execute(select(cases))} == {at}
    assert (await read_report(tables.engine, 0, 1)).gas == ()


def a_receipt(gas_used: int) -> Receipt:
    zero = Hash32(bytes(32))
    return Receipt(zero, BlockNumber(7), zero, True, gas_used, 10**30, None, (), None)


def test_report_is_printed_for_people_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database, market = database_of("", tmp_path), a_market()

    async def fill() -> None:
        tables = await Projection.open(database)
        market.until_decided(market.order(0, 1))
        await tables.refresh(market.core.state, market.archive)
        await tables.close()

    with pytest.raises(Unavailable, match="there are no tables yet; start the coordinator"):
        report_command.make_report(database, "7d")
    with pytest.raises(Refused, match="--since: 'x' is not a duration"):
        report_command.make_report(database, "x")
    asyncio.run(fill())
    found = asyncio.run(report_command._read(database, 0, market.at + 1))
    report_command.print_report(found, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["jobs"] == printed["outcomes"]["accepted"] == 1 and int(printed["fees"]) > 0
    assert printed["demand"] == [{"pool": f"0x{CLASS}", "name": "cpu", "jobs": 1, "unmatched": 0}]
    report_command.print_report(found, as_json=False)
    shown = capsys.readouterr().out
    assert "expired unmatched" in shown and "cpu" in shown


# ---- a database that is unavailable, or that is no database


def the_tables(database: Database, market: ArchivingMarket, folder: Path) -> MarketTables:
    return MarketTables(
        database,
        market.core.state,
        market.archive,
        folder / "transactions.sqlite",
        Address(bytes(20)),
        VirtualClock(float(market.at)),
        Board(),
    )


@pytest.mark.postgres
async def test_an_unavailable_postgres_delays_only_the_tables(
    server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = server.create_database("comes_and_goes")
    market, query = a_market(), HistoryQuery("hour", 0, 2**31)
    tables = the_tables(database_of(url, tmp_path), market, tmp_path)

    async def problem_of_rounds(rounds: int) -> str:
        """Returns what `health` reports after at least `rounds` rounds of `run`. Each round
        moves the clock on.
        """
        clock = tables.clock
        assert isinstance(clock, VirtualClock)
        end = clock.elapsed + rounds * REFRESH_SECONDS
        task = asyncio.create_task(tables.run())
        async with asyncio.timeout(30):
            while clock.elapsed < end:
                await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return " ".join(item.text for item in tables.board.problems())

    server.stop()
    try:
        assert "they cannot be opened: the PostgreSQL database" in await problem_of_rounds(3)
        with pytest.raises(Unavailable, match="not open yet"):
            await tables.history(query)
        server.start()
        market.order(0, 1)
        assert await problem_of_rounds(1) == ""
        assert (await tables.history(query)).periods[-1].jobs == 1
        server.stop()
        market.order(0, 2)
        assert "they fall behind: the PostgreSQL database" in await problem_of_rounds(3)
        with pytest.raises(Unavailable, match="cannot be read now; ask again later"):
            await tables.history(query)
        server.start()
        assert await problem_of_rounds(1) == ""
        found: MarketHistory = await tables.history(query)
        assert found.periods[-1].jobs == 2
    finally:
        if server._process is None:
            server.start()
        assert tables._projection is not None
        await tables._projection.close()
    told = [record for record in caplog.records if "people query" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING", "INFO", "WARNING", "INFO"]


@pytest.mark.postgres
async def test_a_postgres_database_of_a_newer_program_is_not_changed(
    server: PostgresServer, tmp_path: Path
) -> None:
    database = database_of(server.create_database("newer"), tmp_path)
    tables = await Projection.open(database)
    async with tables.engine.begin() as connection:
        await connection.execute(text("update alembic_version set version_num = '9999'"))
    await tables.close()
    with pytest.raises(Unavailable, match="a newer program has migrated it; start the newer"):
        await Projection.open(database)


async def test_a_run_deleted_while_the_tables_are_away_is_removed_by_the_next_write(
    database: Database, tmp_path: Path
) -> None:
    market = a_market()
    jobs = [market.order(0, 1)]
    market.until_archived(*jobs)
    tables = the_tables(database, market, tmp_path)
    await tables.write()
    await tables.forget(jobs)
    await tables.write()
    assert tables._projection is not None
    assert await recomputed(tables._projection) == {}
    await tables._projection.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("market", "--database: this is no URL; write postgresql\\+asyncpg://USER@HOST/DATABASE"),
        ("mysql://u:secret@h/d", "the driver 'mysql' is not known here"),
        ("postgresql://u:secret@h/d", "the driver 'postgresql' is not known here"),
        ("postgresql+asyncpg://u:secret@h", "it names no database"),
        ("sqlite+aiosqlite://", "name a file"),
    ],
)
def test_a_bad_database_url_is_refused_without_showing_it(
    url: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        database_of(url, tmp_path)
    assert "secret" not in str(refused.value)


def test_postgres_without_its_driver_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"pip install 'quorate\[postgres\]'"):
        database_of("postgresql+asyncpg://h/d", tmp_path)


@pytest.mark.postgres
async def test_no_message_shows_the_password(server: PostgresServer, tmp_path: Path) -> None:
    text = f"postgresql+asyncpg://quorate:hidden@/none?host={server.folder}&password=hidden"
    database = database_of(text, tmp_path)
    with pytest.raises(DATABASE_ERRORS) as away:
        await Projection.open(database)
    told = database.explain(away.value)
    assert "hidden" not in told and "none" in told
