"""Tests migrations of the SQLite tables.

From nothing and from broken files they lead to the tables that the models
declare.
"""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from quorate_coordinator.status.database import is_damage
from quorate_coordinator.status.migrations.models import Base
from quorate_coordinator.status.projection import Projection, providers
from support.markets.scripted_market import Market, Party
from support.memory_archive import MemoryArchive


def engine_of(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


def shape(connection: Connection) -> dict[str, object]:
    seen = inspect(connection)
    names = [name for name in seen.get_table_names() if name != "alembic_version"]
    return {
        name: (
            [
                (column["name"], str(column["type"]), column["nullable"], column["primary_key"])
                for column in seen.get_columns(name)
            ],
            sorted((str(item["name"]), item["column_names"]) for item in seen.get_indexes(name)),
        )
        for name in names
    }


def declared(folder: Path, what: MetaData) -> dict[str, object]:
    engine = engine_of(folder / "declared.sqlite")
    with engine.begin() as connection:
        what.create_all(connection)
        found = shape(connection)
    engine.dispose()
    return found


async def made_shape(path: Path) -> dict[str, object]:
    made = await Projection.open(path)
    try:
        async with made.engine.connect() as connection:
            return await connection.run_sync(shape)
    finally:
        await made.close()


async def test_migrations_give_the_declared_tables(tmp_path: Path) -> None:
    assert await made_shape(tmp_path / "market.sqlite") == declared(tmp_path, Base.metadata)
    engine = engine_of(tmp_path / "market.sqlite")
    with engine.connect() as connection:
        assert (
            compare_metadata(
                MigrationContext.configure(connection, opts={"compare_type": True}), Base.metadata
            )
            == []
        )
    engine.dispose()


@pytest.mark.parametrize("ruin", ["garbage", "newer", "killed half way", "two at once"])
async def test_a_file_that_cannot_be_used_is_replaced(
    tmp_path: Path, ruin: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "market.sqlite"
    if ruin == "garbage":
        path.write_bytes(b"this is no database" * 500)
    elif ruin == "killed half way":
        await made_shape(path)
        engine = engine_of(path)
        with engine.begin() as connection:
            connection.execute(text("drop table providers"))
            connection.execute(text("drop table alembic_version"))
            connection.execute(text("create table _alembic_tmp_runs(job_id varchar(64))"))
        engine.dispose()
    elif ruin == "two at once":
        await made_shape(path)
        engine = engine_of(path)
        with engine.begin() as connection:
            connection.execute(text("insert into alembic_version values('0000')"))
        engine.dispose()
    else:
        await made_shape(path)
        engine = engine_of(path)
        with engine.begin() as connection:
            connection.execute(text("update alembic_version set version_num = '9999'"))
            connection.execute(
                text("insert into providers values('cc','eu','5','6','0','0','0',0)")
            )
        engine.dispose()
    assert await made_shape(path) == declared(tmp_path, Base.metadata)
    assert "replacing the tables' file" in caplog.text
    engine = engine_of(path)
    with engine.connect() as connection:
        assert connection.execute(select(providers)).all() == []
    engine.dispose()


async def test_a_column_holds_an_amount_of_128_bits(tmp_path: Path) -> None:
    made = await Projection.open(tmp_path / "market.sqlite")
    async with made.engine.begin() as connection:
        row = {
            "owner": "aa",
            "region": "eu",
            "final": 2**128 - 1,
            "held": 0,
            "faults": 0,
            "vouched": 0,
            "paid": 0,
            "locked": 0,
        }
        await connection.execute(providers.insert().values(row))
        assert (await connection.execute(select(providers.c.final))).scalar() == 2**128 - 1
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
    market = Market(*(Party(number) for number in range(4)))
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
    market = Market(*(Party(number) for number in range(4)))
    task = asyncio.create_task(made.refresh(market.core.state, MemoryArchive()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(written) == 1, "what was begun is ended first"
    await made.close()
