"""Copies a journal into a second folder, while a daemon writes it. The copy can replace it.

The copy is a journal's file of the same format. Each call of `JournalCut.write` takes what is new
in one transaction, so a crash leaves the copy as it was before. The copy never has an event without
all events before it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType

from quorate_runtime.journal import journal_files as files
from quorate_runtime.journal.journal_files import PIECE_BYTES, database

_BATCH = "id, first, last, payload, checksum"


class JournalCut:
    """One moment of a journal: all that was durable when it was made. Use it as a context manager.

    SQLite keeps the moment while the writer goes on, and the journal's WAL grows until it ends. All
    methods raise `sqlite3.Error` or `OSError` as the disks do.
    """

    def __init__(self, folder: Path) -> None:
        path = database(folder)
        self._source = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10.0
        )
        self._source.execute("BEGIN")
        self.last_offset = files.last_offset(self._source)

    def __enter__(self) -> "JournalCut":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._source.close()

    def write(self, folder: Path) -> int:
        """Brings the copy in `folder` to this moment; returns how many batches were copied.

        Makes the copy if there is none. If it lacks batches that the journal has deleted since, all
        of it is copied again.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = database(folder)
        if not path.exists():
            files.create(folder, path)
        with closing(files.connect(path)) as copy:
            copy.execute("PRAGMA synchronous = FULL")
            copy.execute("BEGIN IMMEDIATE")
            try:
                copied = self._write(copy)
                copy.execute("COMMIT")
            except BaseException:
                if copy.in_transaction:
                    copy.execute("ROLLBACK")
                raise
        return copied

    def _write(self, copy: sqlite3.Connection) -> int:
        first, _ = self._bounds(self._source)
        _, known = self._bounds(copy)
        if known + 1 < first or self._newest(copy, known) != self._newest(self._source, known):
            # Batches in between are gone, or the copy is of a journal that went on differently.
            for table in ("batches", "snapshots", "carried"):
                copy.execute(f"DELETE FROM {table}")
            known = 0
        copied = copy.executemany(
            f"INSERT INTO batches ({_BATCH}) VALUES (?, ?, ?, ?, ?)",
            self._source.execute(
                f"SELECT {_BATCH} FROM batches WHERE id > ? ORDER BY id", (known,)
            ),
        ).rowcount
        if files.snapshot_offsets(self._source) != files.snapshot_offsets(copy):
            self._write_snapshots(copy)
            copy.execute("DELETE FROM batches WHERE id < ?", (first,))
        return max(0, copied)

    def _write_snapshots(self, copy: sqlite3.Connection) -> None:
        known, wanted = files.snapshot_offsets(copy), files.snapshot_offsets(self._source)
        copy.executemany(
            "DELETE FROM snapshots WHERE offset = ?", [(it,) for it in known if it not in wanted]
        )
        for offset in wanted:
            if offset not in known:
                self._write_snapshot(copy, offset)
        # Effects that are still pending are kept apart once their events are deleted.
        copy.execute("DELETE FROM carried")
        copy.executemany(
            "INSERT INTO carried VALUES (?, ?, ?, ?, ?, ?)",
            self._source.execute(
                "SELECT offset, place, key, version, payload, checksum FROM carried"
            ),
        )

    def _write_snapshot(self, copy: sqlite3.Connection, offset: int) -> None:
        version, size, checksum = self._source.execute(
            "SELECT version, length(payload), checksum FROM snapshots WHERE offset = ?", (offset,)
        ).fetchone()
        row = (offset, version, size, checksum)
        copy.execute("INSERT INTO snapshots VALUES (?, ?, zeroblob(?), ?)", row)
        with (
            self._source.blobopen("snapshots", "payload", offset, readonly=True) as source,
            copy.blobopen("snapshots", "payload", offset) as target,
        ):
            while piece := source.read(PIECE_BYTES):
                target.write(piece)

    @staticmethod
    def _newest(connection: sqlite3.Connection, number: int) -> object:
        query = "SELECT first, last, checksum FROM batches WHERE id = ?"
        return connection.execute(query, (number,)).fetchone()

    @staticmethod
    def _bounds(connection: sqlite3.Connection) -> tuple[int, int]:
        """(number of the oldest batch, of the newest one); zeros for an empty journal."""
        first, newest = connection.execute("SELECT min(id), max(id) FROM batches").fetchone()
        return int(first or 0), int(newest or 0)


def check_copy(folder: Path) -> tuple[int, int]:
    """Reads all of a journal's copy and checks every checksum; writes nothing. Returns the offset
    and the second of its newest event. Raises `JournalError` as opening the journal does.
    """
    snapshot = files.read_snapshot(folder)
    offset = snapshot.offset if snapshot is not None else 0
    at = 0
    for stored in files.read_events(folder, offset):
        offset, at = stored.offset, int(stored.record.at)
    return offset, at
