"""Copies the coordinator's other files beside the journal: archive, documents, sends, keys.

Archive and documents may have gigabytes, so only new rows are copied. All functions block. They
raise `sqlite3.Error`, `OSError` or `Unavailable` as the disks do.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from quorate_coordinator.base.config import ARCHIVE, DOCUMENTS
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage import document_file
from quorate_coordinator.storage.archive import FileArchive
from quorate_protocol.codec.packed import Packed
from quorate_protocol.units import Hash32
from quorate_runtime.durable import make_whole
from quorate_runtime.files import write_atomic

ROWS_MAX = 256  # rows of one transaction
_RUN: Packed[ArchivedRun] = Packed(ArchivedRun)
_FIRST = (0, Hash32(bytes(32)))


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)) as opened:
        yield opened


def copy_archive(home: Path, place: Path, after: int) -> int:
    """Copies up to `ROWS_MAX` runs with a row number above `after`, and as many lines of the log.

    Returns the highest row number copied, which is `after` if nothing is left. A file that begins
    again at lower numbers is copied from its beginning.
    """
    if not (home / ARCHIVE).exists():
        return after
    with closing(FileArchive(place / ARCHIVE)) as copy:
        with reading(home / ARCHIVE) as source:
            newest = source.execute("SELECT max(rowid) FROM runs").fetchone()[0] or 0
            rows = source.execute(
                "SELECT rowid, body FROM runs WHERE rowid > ? ORDER BY rowid LIMIT ?",
                (after if after <= newest else 0, ROWS_MAX),
            ).fetchall()
            lines = source.execute(
                "SELECT seq, line FROM log WHERE seq >= ? ORDER BY seq LIMIT ?",
                (copy.line_count(), ROWS_MAX),
            ).fetchall()
            gone = _gone(copy, source)
        copy.keep([_RUN.decode(body) for _, body in rows])
        copy.append([(int(seq), bytes(line)) for seq, line in lines])
        copy.forget(gone, frozenset())
    return int(rows[-1][0]) if rows else min(after, int(newest))


def _gone(copy: FileArchive, source: sqlite3.Connection) -> list[ArchivedRun]:
    oldest = [run for _, run in copy.ended_before(1 << 62, _FIRST, ROWS_MAX)]
    query = "SELECT 1 FROM runs WHERE job_id = ?"
    return [run for run in oldest if source.execute(query, (run.run.job_id,)).fetchone() is None]


def copy_documents(home: Path, place: Path, after: int) -> int:
    """It deletes from the copy what is older than the oldest document of the file."""
    if not (home / DOCUMENTS).exists():
        return after
    make_whole(place / DOCUMENTS, f"{document_file.TABLES} PRAGMA user_version = 1;")
    with (
        reading(home / DOCUMENTS) as source,
        closing(sqlite3.connect(place / DOCUMENTS, isolation_level=None)) as copy,
    ):
        oldest, newest = source.execute(
            "SELECT coalesce(min(rowid), 0), coalesce(max(rowid), 0) FROM documents"
        ).fetchone()
        rows = source.execute(
            "SELECT rowid, digest, at, size, body FROM documents WHERE rowid > ? "
            "ORDER BY rowid LIMIT ?",
            (after if after <= newest else 0, ROWS_MAX),
        ).fetchall()
        copy.execute("PRAGMA synchronous = FULL")
        copy.execute("BEGIN IMMEDIATE")
        try:
            copy.execute("DELETE FROM documents WHERE rowid < ?", (oldest,))
            copy.executemany(
                "INSERT OR REPLACE INTO documents (rowid, digest, at, size, body) "
                "VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            copy.execute("COMMIT")
        except BaseException:
            if copy.in_transaction:
                copy.execute("ROLLBACK")
            raise
    return int(rows[-1][0]) if rows else min(after, int(newest))


def copy_database(source: Path, target: Path) -> None:
    """A crash leaves the copy as it was before."""
    with reading(source) as opened, closing(sqlite3.connect(target)) as copy:
        opened.backup(copy)


def copy_file(source: Path, target: Path) -> None:
    """Copies a small file, unless the copy is the same already."""
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(target, data)
