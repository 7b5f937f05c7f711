"""Chooses the database of the SQL tables: a SQLite file, or PostgreSQL by its URL.

No message shows a password: messages name the server and the database, never the URL.
"""

import functools
import importlib.util
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from quorate_protocol.refusals import Code, Refused
from quorate_runtime.durable import SMALL_CACHE, is_outside_cause

FILE = "market.sqlite"
POSTGRES, SQLITE = "postgresql+asyncpg", "sqlite+aiosqlite"
FORM = f"{POSTGRES}://USER@HOST/DATABASE"
CONNECT_SECONDS = 5
COMMAND_SECONDS = 10
TEXT_MAX = 300
Insert = sqlite.Insert | postgresql.Insert


def _database_errors() -> tuple[type[Exception], ...]:
    found: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, TimeoutError)
    if importlib.util.find_spec("asyncpg") is None:
        return found
    import asyncpg  # type: ignore[import-untyped,unused-ignore]

    # SQLAlchemy lets the driver's own errors through while it connects.
    return (*found, asyncpg.PostgresError, asyncpg.InterfaceError)


DATABASE_ERRORS = _database_errors()
"""What reading or writing the tables raises while the database cannot be used."""


@dataclass(frozen=True, slots=True)
class Database:
    """The database of the tables. `path` is the SQLite file; None for PostgreSQL."""

    url: URL
    path: Path | None

    @property
    def name(self) -> str:
        """For people: the file, or the database and the server without user and password."""
        if self.path is not None:
            return str(self.path)
        server = self.url.host or self.url.query.get("host") or "localhost"
        return f"the PostgreSQL database {self.url.database} at {server}"

    def engine(self) -> AsyncEngine:
        if self.path is None:
            return create_async_engine(
                self.url,
                pool_size=2,
                max_overflow=0,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args={"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS},
            )
        engine = create_async_engine(self.url, hide_parameters=True)
        event.listen(
            engine.sync_engine, "connect", lambda connection, _: connection.execute(SMALL_CACHE)
        )
        return engine

    def explain(self, error: Exception) -> str:
        """One line, without the password."""
        cause = error.orig if isinstance(error, DatabaseError) and error.orig else error
        text = " ".join((str(cause) or type(cause).__name__).split())
        for secret in (self.url.password, self.url.query.get("password")):
            if secret:
                text = text.replace(str(secret), "***")
        return f"{self.name}: {text[:TEXT_MAX]}"


def database_of(text: str, home: Path) -> Database:
    """For "", the SQLite file in the coordinator's folder. Raises `Refused` with the option and the
    remedy. It repeats no part of the URL but its driver.
    """
    if not text:
        return _file(home / FILE)
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise Refused(Code.MALFORMED, f"--database: this is no URL; write {FORM}") from error
    if url.drivername == SQLITE:
        if not url.database:
            raise Refused(Code.MALFORMED, f"--database: name a file, {SQLITE}:////FOLDER/{FILE}")
        return _file(Path(url.database))
    if url.drivername != POSTGRES:
        raise Refused(
            Code.MALFORMED,
            f"--database: the driver {url.drivername[:40]!r} is not known here; write {FORM}, or "
            f"leave the option out for a SQLite file",
        )
    if not url.database:
        raise Refused(Code.MALFORMED, f"--database: it names no database; write {FORM}")
    if importlib.util.find_spec("asyncpg") is None:
        raise Refused(
            Code.MALFORMED,
            "--database: PostgreSQL needs the package asyncpg, which is not installed; run pip "
            "install 'quorate[postgres]'",
        )
    return Database(url, None)


def _file(path: Path) -> Database:
    return Database(URL.create(SQLITE, database=str(path)), path)


def is_damage(error: Exception) -> bool:
    """The file itself, not the disk or its folder. An operator repairs PostgreSQL."""
    cause = error.orig if isinstance(error, DatabaseError) else None
    return isinstance(cause, sqlite3.DatabaseError) and not is_outside_cause(cause)


async def upsert(
    connection: AsyncConnection,
    table: Table,
    rows: Sequence[dict[str, object]],
    *,
    changes: tuple[str, ...] | None = None,
    if_not_less: str = "",
) -> None:
    """If a row with the same key exists, replaces its columns `changes` (None: all but the key). A
    row in which the column `if_not_less` would shrink stays as it is.
    """
    if rows:
        statement = _upserting(connection.dialect.name, table, changes, if_not_less)
        await connection.execute(statement, list(rows))


@functools.cache  # SQLAlchemy's copy of a table's columns refers to itself
def _upserting(
    dialect: str, table: Table, changes: tuple[str, ...] | None, if_not_less: str
) -> Insert:
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    keys = [column.name for column in table.primary_key]
    names = [column.name for column in table.columns if column.name not in keys]
    written = {name: statement.excluded[name] for name in (names if changes is None else changes)}
    if not written:
        return statement.on_conflict_do_nothing(index_elements=keys)
    where = statement.excluded[if_not_less] >= table.c[if_not_less] if if_not_less else None
    return statement.on_conflict_do_update(index_elements=keys, set_=written, where=where)
