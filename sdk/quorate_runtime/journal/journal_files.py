"""Reads, writes and checks the journal's SQLite file. `journal` calls it on the right thread."""

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from quorate_runtime.actor.journal_port import (
    JournalDamaged,
    JournalError,
    KeyedEffect,
    Pending,
    Snapshot,
    Stored,
)
from quorate_runtime.durable import SMALL_CACHE, is_outside_cause, newer, older, remedy
from quorate_runtime.files import sync_folder
from quorate_runtime.journal.journal_batch import Done, Event, Place, unpack

# The journal's index of effects in memory: the pending ones, and the keys that are known.
#
# Both are bounded. The actor takes no events while too many effects are pending, and each
# snapshot calls `forget` for the keys. So a key counts as new again once its event lies before
# the older of the two kept snapshots, at least 1,000 events later. Performing an effect twice is
# harmless, so a repeated effect costs only work.


class PendingEffects:
    """The pending effects and the known keys, in the order of their decisions."""

    def __init__(self) -> None:
        self._pending: dict[Place, Pending] = {}
        self._known: dict[str, Place] = {}

    @property
    def keys(self) -> int:
        return len(self._known)

    def pending(self) -> list[Pending]:
        return list(self._pending.values())

    def carried(self, until: int) -> list[tuple[Place, Pending]]:
        return [(place, item) for place, item in self._pending.items() if place[0] <= until]

    def add(
        self, offset: int, version: int, effects: Sequence[KeyedEffect]
    ) -> Sequence[KeyedEffect]:
        fresh: list[KeyedEffect] = []
        for key, payload in effects:
            if key not in self._known:
                place = (offset, len(fresh))
                self._known[key] = place
                self._pending[place] = Pending(key, offset, version, payload)
                fresh.append((key, payload))
        return fresh

    def done(self, keys: Iterable[str]) -> list[Place]:
        """Removes pending effects. Returns the places of those that were pending."""
        places = [place for key in keys if (place := self._known.get(key)) is not None]
        return [place for place in places if self._pending.pop(place, None) is not None]

    def forget(self, until: int) -> None:
        self._known = {
            key: place
            for key, place in self._known.items()
            if place[0] > until or place in self._pending
        }

    # ---- from what is on disk

    def restore(self, items: Iterable[tuple[Place, Pending]]) -> None:
        for place, item in items:
            self._known[item.key] = place
            self._pending[place] = item

    def replay(self, offset: int, part: Event | Done) -> None:
        """Applies one part of a batch. For an event, `offset` is its own."""
        if isinstance(part, Event):
            self.restore(part.pending(offset))
        else:
            for place in part.places:
                self._pending.pop(place, None)


log = logging.getLogger(__name__)
SCHEMA_VERSION = 7  # up to 6, offers named no bandwidth
SNAPSHOTS_KEPT = 2
PIECE_BYTES = 64 * 1024
BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE batches (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL,
                      payload BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX batches_last ON batches (last);
CREATE TABLE carried (offset INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL,
                      version INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL,
                      PRIMARY KEY (offset, place)) WITHOUT ROWID;
CREATE TABLE snapshots (offset INTEGER PRIMARY KEY, version INTEGER NOT NULL,
                        payload BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class Drop(Struct, frozen=True):
    """What a new snapshot makes unnecessary: the events up to offset `until`. `carried` are their
    effects that are still pending, which are kept.
    """

    until: int
    carried: list[tuple[Place, Pending]]


def database(folder: Path) -> Path:
    return folder / "journal.db"


def open_for_writing(folder: Path, pages_max: int | None) -> sqlite3.Connection:
    """Opens the one connection that writes, for the writer thread. Makes the file if there is none.

    `pages_max` bounds the file in pages of 4 KiB. Raises `JournalDamaged` for a file that is not
    what was written, and `JournalError` for another format or a file that cannot be read.
    """
    path = database(folder)
    with _reading(path):
        if not path.exists():
            create(folder, path)
        connection = connect(path)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                # SQLite takes an empty file for a new database. Ours always have a version.
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
    """Finds what checksums of rows cannot show: missing rows at the end. It reads every page, as
    the replay does too.
    """
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(path, str(problem).replace("\n", " "))
    newest, kept = connection.execute(
        "SELECT max(last), (SELECT max(offset) FROM snapshots) FROM batches"
    ).fetchone()
    if (kept or 0) > (newest or 0):
        raise _damaged(
            path, f"it has a snapshot at event {kept}, but its newest event is {newest or 0}"
        )


def create(folder: Path, path: Path) -> None:
    """Makes the file under another name, then renames it: a crash leaves no file without tables."""
    if path.with_name(path.name + "-wal").exists():
        raise _damaged(path, "it is gone, but its WAL is there")
    draft = folder / "journal.new"
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(connect(draft)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    # Closing the connection copied the WAL into the file, synced the file and removed the WAL.
    draft.rename(path)
    sync_folder(folder)


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def last_offset(connection: sqlite3.Connection) -> int:
    """Returns the newest event's offset; 0 for an empty journal. The snapshots count too, because
    the events before a snapshot may be deleted.
    """
    return int(
        connection.execute(
            "SELECT max(coalesce(max(last), 0), (SELECT coalesce(max(offset), 0) FROM snapshots)) "
            "FROM batches"
        ).fetchone()[0]
    )


def snapshot_offsets(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT offset FROM snapshots ORDER BY offset")]


def write_batch(connection: sqlite3.Connection, first: int, last: int, payload: bytes) -> None:
    """Inserts one row with the events `first` to `last` and the marks between them. For a batch of
    marks alone, `last` is `first` - 1.
    """
    connection.execute(
        "INSERT INTO batches (first, last, payload, checksum) VALUES (?, ?, ?, ?)",
        (first, last, payload, _checksum(first, last, payload)),
    )


def write_snapshot(connection: sqlite3.Connection, snapshot: Snapshot, drop: Drop | None) -> None:
    """Inserts a snapshot. Deletes all but the newest SNAPSHOTS_KEPT, and what `drop` names."""
    checksum = _checksum(snapshot.offset, snapshot.version, snapshot.payload)
    # Written in pieces, because SQLite would keep a copy of the whole payload with the statement
    # until the next one.
    row = (snapshot.offset, snapshot.version, len(snapshot.payload), checksum)
    connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, zeroblob(?), ?)", row)
    with connection.blobopen("snapshots", "payload", snapshot.offset) as blob:
        for start in range(0, len(snapshot.payload), PIECE_BYTES):
            blob.write(snapshot.payload[start : start + PIECE_BYTES])
    connection.execute(
        (
            "DELETE FROM snapshots WHERE offset NOT IN "
            "(SELECT offset FROM snapshots ORDER BY offset DESC LIMIT ?)"
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
    """Yields the events after offset `after`, in order, and checks each batch. Raises
    JournalDamaged at the first event that is missing or has a wrong checksum.
    """
    path = database(folder)
    expected = after
    with _reading(path), closing(connect(path)) as connection:
        for offset, part in _parts(path, connection, after):
            if isinstance(part, Event) and offset > after:
                expected += 1
                if offset != expected:
                    raise _damaged(
                        path, f"event {expected} is missing" + _dropped(connection, expected)
                    )
                yield Stored(offset, part.record)


def read_outbox(connection: sqlite3.Connection, folder: Path) -> PendingEffects:
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
    """Yields the parts of all batches from the one that holds event `after` + 1.

    With each part comes the offset of the newest event so far. Raises JournalDamaged if an event is
    missing or a checksum is wrong.
    """
    rows = connection.execute(
        (
            "SELECT id, first, last, payload, checksum FROM batches "
            "WHERE id >= (SELECT min(id) FROM batches WHERE last > ?) ORDER BY id"
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
    """Returns the newest snapshot with a right checksum, or None if there is no snapshot.

    An older snapshot also works, because all events after the oldest kept snapshot are kept. Raises
    JournalDamaged if all snapshots have a wrong checksum.
    """
    path, damaged = database(folder), 0
    with _reading(path), closing(connect(path)) as connection:
        for offset, version, payload, checksum in connection.execute(
            "SELECT offset, version, payload, checksum FROM snapshots ORDER BY offset DESC"
        ):
            if _checksum(offset, version, payload) == checksum:
                return Snapshot(offset, version, payload)
            log.error("%s: the snapshot at event %d does not have its checksum", path, offset)
            damaged = offset
    if damaged:
        raise _damaged(
            path,
            f"the snapshot at event {damaged} does not have its checksum, "
            f"and neither does a newer one",
        )
    return None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the system into `JournalError` or `JournalDamaged`. Only a broken
    file is called damaged: a backup does not help against a full disk.
    """
    try:
        yield
    except sqlite3.Error as error:
        if is_outside_cause(error):
            raise JournalError(f"{path}: {error}; {remedy(path)}, then start again") from error
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise JournalError(
            f"{path}: {error.strerror or error}; {remedy(path)}, then start again"
        ) from error


def _dropped(connection: sqlite3.Connection, offset: int) -> str:
    newest = snapshot_offsets(connection)
    is_old = bool(newest) and offset <= newest[0]
    return (
        (
            f", as it must be after the snapshot at event {newest[0]}: use the program's version "
            f"that wrote that"
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
