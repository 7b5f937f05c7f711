"""The journal's file: schema, statements and checks. `journal` decides when they run and on which thread."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from zlib import crc32

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.journal_port import Appended, JournalDamaged, JournalError, KeyedEffect, Pending, Record, Snapshot, Stored

SCHEMA_VERSION = 1
SNAPSHOTS_KEPT = 2
BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE events (offset INTEGER PRIMARY KEY, version INTEGER NOT NULL, at INTEGER NOT NULL,
                     random BLOB NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE outbox (key TEXT PRIMARY KEY, offset INTEGER NOT NULL, version INTEGER NOT NULL, payload BLOB NOT NULL,
                     done INTEGER NOT NULL DEFAULT 0);
CREATE INDEX outbox_pending ON outbox (done) WHERE done = 0;
CREATE TABLE snapshots (offset INTEGER PRIMARY KEY, version INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


def database(folder: Path) -> Path:
    """Path of the database file; its WAL lies beside it."""
    return folder / "journal.db"


def open_for_writing(folder: Path, pages_max: int | None) -> sqlite3.Connection:
    """The one writing connection, to be handed to the writer thread. Makes the file when there is none."""
    path = database(folder)
    with _reading(path):
        if not path.exists():
            _create(folder, path)
        connection = _connect(path)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                # SQLite takes a file cut to nothing for a new database; ours are never without a version.
                raise _damaged(path, "it is empty")
            if version != SCHEMA_VERSION:
                raise JournalError(f"{path} was written by another version (schema {version}, not {SCHEMA_VERSION}). Use that version.")
            connection.execute("PRAGMA synchronous = FULL")
            if pages_max is not None:
                connection.execute(f"PRAGMA max_page_count = {pages_max:d}")
        except BaseException:
            connection.close()
            raise
    return connection


def _create(folder: Path, path: Path) -> None:
    """Whole or not at all: made under another name, then renamed, so that a file without tables is never a crash's work."""
    if path.with_name(path.name + "-wal").exists():
        raise _damaged(path, "it is gone, but its WAL is there")
    draft = folder / "journal.new"
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(_connect(draft)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    # Closing wrote the WAL back, synced and removed it.
    draft.rename(path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def last_offset(connection: sqlite3.Connection) -> int:
    """Newest offset, 0 when empty."""
    return int(connection.execute("SELECT coalesce(max(offset), 0) FROM events").fetchone()[0])


def write_event(connection: sqlite3.Connection, offset: int, record: Record, effects: Sequence[KeyedEffect]) -> Appended:
    """Inserts an event and those of its effects whose keys are new."""
    connection.execute(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
        (offset, record.version, record.at, record.random, record.payload, _checksum(offset, record)),
    )
    fresh = frozenset(
        key
        for key, payload in effects
        if connection.execute(
            "INSERT INTO outbox (key, offset, version, payload) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (key, offset, record.version, payload),
        ).rowcount
    )
    return Appended(offset, fresh)


def write_done(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """The key stays, so that it is never queued again; what the effect said is dropped."""
    connection.executemany("UPDATE outbox SET done = 1, payload = x'' WHERE key = ?", ((key,) for key in keys))


def write_snapshot(connection: sqlite3.Connection, snapshot: Snapshot) -> None:
    """Inserts a snapshot and drops all but the newest few."""
    row = (snapshot.offset, snapshot.version, snapshot.payload, crc32(snapshot.payload))
    connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)
    connection.execute(
        "DELETE FROM snapshots WHERE offset NOT IN (SELECT offset FROM snapshots ORDER BY offset DESC LIMIT ?)", (SNAPSHOTS_KEPT,)
    )


def read_events(folder: Path, after: int) -> Iterator[Stored]:
    """Events with larger offsets, in order, each checked."""
    path = database(folder)
    expected = after
    with _reading(path), closing(_connect(path)) as connection:
        rows = connection.execute("SELECT * FROM events WHERE offset > ? ORDER BY offset", (after,))
        for offset, version, at, random, payload, checksum in rows:
            expected += 1
            record = Record(version, UnixSeconds(at), Hash32(random), payload)
            if offset != expected:
                raise _damaged(path, f"event {expected} is missing")
            if _checksum(offset, record) != checksum:
                raise _damaged(path, f"event {offset} does not have its checksum")
            yield Stored(offset, record)


def read_pending(folder: Path) -> Sequence[Pending]:
    """Effects not done, in the order in which they were decided."""
    path = database(folder)
    with _reading(path), closing(_connect(path)) as connection:
        rows = connection.execute("SELECT key, offset, version, payload FROM outbox WHERE done = 0 ORDER BY rowid")
        return [Pending(*row) for row in rows]


def read_snapshot(folder: Path) -> Snapshot | None:
    """The newest snapshot, checked."""
    path = database(folder)
    with _reading(path), closing(_connect(path)) as connection:
        row = connection.execute("SELECT offset, version, payload, checksum FROM snapshots ORDER BY offset DESC LIMIT 1").fetchone()
    if row is None:
        return None
    offset, version, payload, checksum = row
    if crc32(payload) != checksum:
        raise _damaged(path, f"the snapshot at event {offset} does not have its checksum")
    return Snapshot(offset, version, payload)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"{path}: {what}. Nothing was changed. Restore the folder from a backup; "
        f"without one, save what can still be read with: sqlite3 {path} .recover"
    )


def _checksum(offset: int, record: Record) -> int:
    head = f"{offset} {record.version} {record.at} {len(record.payload)} ".encode()
    return crc32(record.payload, crc32(record.random, crc32(head)))
