"""The journal's file: schema, statements and checks. `journal` decides when they run and on
which thread.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from quorate_runtime.journal.journal_batch import Done, Event, Place, unpack
from quorate_runtime.journal.journal_port import (
    JournalDamaged,
    JournalError,
    Pending,
    Snapshot,
    Stored,
)
from quorate_runtime.journal.pending_effects import PendingEffects
from quorate_runtime.sqlite.durable import MAY_BE_WHOLE, SMALL_CACHE, is_of_the_world, newer, older

log = logging.getLogger(__name__)
SCHEMA_VERSION = 4  # up to 3, events, effects and snapshots were canonical JSON
SNAPSHOTS_KEPT = 2
PIECE_BYTES = 64 * 1024
BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE batches (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL,
                      payload BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX batches_last ON batches (last);
CREATE TABLE carried (offset INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
                      payload BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (offset, place)) WITHOUT ROWID;
CREATE TABLE snapshots (offset INTEGER PRIMARY KEY, version INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class Drop(Struct, frozen=True):
    """What a snapshot makes superfluous: events up to `until`, but for those of their effects
    that are still pending.
    """

    until: int
    carried: list[tuple[Place, Pending]]


def database(folder: Path) -> Path:
    """Path of the database file; its WAL lies beside it."""
    return folder / "journal.db"


def open_for_writing(folder: Path, pages_max: int | None) -> sqlite3.Connection:
    """The one writing connection, to be handed to the writer thread. Makes the file when there
    is none.
    """
    path = database(folder)
    with _reading(path):
        if not path.exists():
            _create(folder, path)
        connection = _connect(path)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                # SQLite takes a file cut to nothing for a new database; ours are never without a
                # version.
                raise _damaged(path, "it is empty")
            if version < SCHEMA_VERSION:
                raise JournalError(older(path, folder.parent, version, SCHEMA_VERSION))
            if version > SCHEMA_VERSION:
                raise JournalError(newer(path, version, SCHEMA_VERSION))
            _check_whole(path, connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(SMALL_CACHE)
            if pages_max is not None:
                connection.execute(f"PRAGMA max_page_count = {pages_max:d}")
        except BaseException:
            connection.close()
            raise
    return connection


def _check_whole(path: Path, connection: sqlite3.Connection) -> None:
    """What checksums cannot show: rows at the end that are not there. It reads every page, as
    the replay does anyway.
    """
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(path, str(problem).replace("\n", " "))
    newest, kept = connection.execute(
        "SELECT max(last), (SELECT max(offset) FROM snapshots) FROM batches"
    ).fetchone()
    if (kept or 0) > (newest or 0):
        raise _damaged(
            path, f"a snapshot stands at event {kept}, and the newest event is {newest or 0}"
        )


def _create(folder: Path, path: Path) -> None:
    """Whole or not at all: made under another name, then renamed, so that a file without tables
    is never a crash's work.
    """
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
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def last_offset(connection: sqlite3.Connection) -> int:
    """Newest offset, 0 when empty. A batch of marks alone stands at the newest event's; the
    newest snapshot's events may be gone.
    """
    return int(
        connection.execute(
            "SELECT max(coalesce(max(last), 0), (SELECT coalesce(max(offset), 0) FROM snapshots)) "
            "FROM batches"
        ).fetchone()[0]
    )


def snapshot_offsets(connection: sqlite3.Connection) -> list[int]:
    """Offsets of the snapshots that are kept, oldest first."""
    return [row[0] for row in connection.execute("SELECT offset FROM snapshots ORDER BY offset")]


def write_batch(connection: sqlite3.Connection, first: int, last: int, payload: bytes) -> None:
    """Inserts the events `first` to `last` and whatever marks stand among them; `last` is
    `first` - 1 for marks alone.
    """
    connection.execute(
        "INSERT INTO batches (first, last, payload, checksum) VALUES (?, ?, ?, ?)",
        (first, last, payload, _checksum(first, last, payload)),
    )


def write_snapshot(connection: sqlite3.Connection, snapshot: Snapshot, drop: Drop | None) -> None:
    """Inserts a snapshot; drops all but the newest few, and what only they needed."""
    checksum = _checksum(snapshot.offset, snapshot.version, snapshot.payload)
    # In pieces: SQLite would keep a copy of the whole with its statement until the next one.
    row = (snapshot.offset, snapshot.version, len(snapshot.payload), checksum)
    connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, zeroblob(?), ?)", row)
    with connection.blobopen("snapshots", "payload", snapshot.offset) as blob:
        for start in range(0, len(snapshot.payload), PIECE_BYTES):
            blob.write(snapshot.payload[start : start + PIECE_BYTES])
    connection.execute(
        (
            "DELETE FROM snapshots WHERE offset NOT IN (SELECT offset FROM snapshots ORDER BY "
            "offset "
            "DESC LIMIT ?)"
        ),
        (SNAPSHOTS_KEPT,),
    )
    if drop is None:
        return
    connection.execute("DELETE FROM carried")
    rows = [(*place, item.key, item.version, item.payload) for place, item in drop.carried]
    connection.executemany(
        "INSERT INTO carried VALUES (?, ?, ?, ?, ?, ?)",
        ((*row, _carried_checksum(*row)) for row in rows),
    )
    connection.execute(
        "DELETE FROM batches WHERE id < (SELECT min(id) FROM batches WHERE last > ?)", (drop.until,)
    )


def read_events(folder: Path, after: int) -> Iterator[Stored]:
    """Events with larger offsets, in order, each batch checked. `JournalDamaged` when the first
    of them is not there.
    """
    path = database(folder)
    expected = after
    with _reading(path), closing(_connect(path)) as connection:
        for offset, part in _parts(path, connection, after):
            if isinstance(part, Event) and offset > after:
                expected += 1
                if offset != expected:
                    raise _damaged(
                        path, f"event {expected} is missing" + _dropped(connection, expected)
                    )
                yield Stored(offset, part.record)


def read_outbox(connection: sqlite3.Connection, folder: Path) -> PendingEffects:
    """Effects not done, and the keys of all events that are kept."""
    path, index = database(folder), PendingEffects()
    with _reading(path):
        for *row, checksum in connection.execute(
            "SELECT offset, place, key, version, payload, checksum FROM carried ORDER BY offset, "
            "place"
        ):
            if _carried_checksum(*row) != checksum:
                raise _damaged(
                    path, f"effect {row[1]} of event {row[0]} does not have its checksum"
                )
            offset, place, key, kind, payload = row
            index.restore([((offset, place), Pending(key, offset, kind, payload))])
        for offset, part in _parts(path, connection, 0):
            index.replay(offset, part)
    return index


def _parts(
    path: Path, connection: sqlite3.Connection, after: int
) -> Iterator[tuple[int, Event | Done]]:
    """Parts of all batches that hold, or stand after, an event behind `after`; with the offset
    of the newest event so far.
    """
    rows = connection.execute(
        (
            "SELECT id, first, last, payload, checksum FROM batches WHERE id >= (SELECT min(id) "
            "FROM "
            "batches WHERE last > ?) ORDER BY id"
        ),
        (after,),
    )
    expected: int | None = None
    for number, first, last, payload, checksum in rows:
        if first != (expected or first):
            raise _damaged(path, f"event {expected} is missing")
        if _checksum(first, last, payload) != checksum:
            raise _damaged(
                path, f"batch {number} (events {first} to {last}) does not have its checksum"
            )
        offset = first - 1
        for part in unpack(payload):
            offset += isinstance(part, Event)
            yield offset, part
        assert offset == last, f"batch {number} holds as many events as it says"
        expected = last + 1


def read_snapshot(folder: Path) -> Snapshot | None:
    """The newest snapshot that has its checksum; `JournalDamaged` when there are some and none has.

    An older one serves as well: the events behind the oldest that is kept are kept too.
    """
    path, damaged = database(folder), 0
    with _reading(path), closing(_connect(path)) as connection:
        for offset, version, payload, checksum in connection.execute(
            "SELECT offset, version, payload, checksum FROM snapshots ORDER BY offset DESC"
        ):
            if _checksum(offset, version, payload) == checksum:
                return Snapshot(offset, version, payload)
            log.error("%s: the snapshot at event %d does not have its checksum", path, offset)
            damaged = offset
    if damaged:
        raise _damaged(
            path, f"the snapshot at event {damaged} does not have its checksum, nor has a newer one"
        )
    return None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What keeps it from being read is told apart from what is wrong with it: a backup does not
    help against a full disk.
    """
    try:
        yield
    except sqlite3.Error as error:
        if is_of_the_world(error):
            raise JournalError(f"{path}: {error}; {MAY_BE_WHOLE}, then start again") from error
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise JournalError(
            f"{path}: {error.strerror or error}; {MAY_BE_WHOLE}, then start again"
        ) from error


def _dropped(connection: sqlite3.Connection, offset: int) -> str:
    newest = snapshot_offsets(connection)
    is_old = bool(newest) and offset <= newest[0]
    return (
        (
            f", as it must be after the snapshot at event {newest[0]}: use the program's version "
            f"that "
            f"wrote that"
        )
        if is_old
        else ""
    )


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"{path}: {what}. Nothing was changed. Restore the folder from a backup; "
        f"without one, save what can still be read with: sqlite3 {path} .recover"
    )


def _checksum(first: int, last: int, payload: bytes) -> int:
    return crc32(payload, crc32(f"{first} {last} {len(payload)} ".encode()))


def _carried_checksum(offset: int, place: int, key: str, version: int, payload: bytes) -> int:
    return crc32(key.encode(), crc32(f"{place} ".encode(), _checksum(offset, version, payload)))
