"""The archive on disk: one SQLite file that only this process writes. Handled like the journal: nothing in it can be made anew.

A file of a newer program, or one that cannot be read, ends the start with a sentence; it is never emptied. One connection writes,
from whichever thread, every transaction synced; another reads, from the event loop: look-ups by key, some ten microseconds each.
"""

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from quorate_coordinator.archive import RUNS_PER_LOOK, Readers, Row, readers_of, row_of
from quorate_coordinator.core.archived import ArchivedRun
from quorate_protocol import codec, codec_text
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32

VERSION = 1
RETRY_SECONDS = 5.0
TABLES = """
CREATE TABLE runs (
    job_id BLOB PRIMARY KEY, client BLOB NOT NULL, created_at INTEGER NOT NULL, last_line INTEGER NOT NULL, shown TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX runs_by_age ON runs (client, created_at, last_line);
CREATE INDEX runs_by_client_line ON runs (client, last_line);
CREATE INDEX runs_by_line ON runs (last_line);
CREATE TABLE outputs (digest BLOB PRIMARY KEY, lease BLOB NOT NULL, provider BLOB NOT NULL, client BLOB NOT NULL) WITHOUT ROWID;
"""


class ArchiveDamaged(Exception):
    """The file is not one that this program can use; the message names it and the remedy."""


class FileArchive:
    """`RunArchive` in a file."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it. `ArchiveDamaged` when there is one that is not to be touched."""
        self._path = path
        self._lock = threading.Lock()
        try:
            self._writer = _connect(path)
            _migrate(self._writer, path)
            self._reader = _connect(path)
        except sqlite3.DatabaseError as error:
            raise ArchiveDamaged(
                f"{path} cannot be read ({error}). It holds the finished runs; take its backup, or move it away to go on without"
            ) from error

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """As `RunArchive`. `Unavailable` while the disk does not take it."""
        rows = [_columns(run) for run in runs]
        outputs = [(digest, item.lease, item.provider, item.client) for run in runs for digest, item in readers_of(run)]
        try:
            with self._lock, self._writer:
                self._writer.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", rows)
                self._writer.executemany("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?, ?)", outputs)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path} does not take finished runs: {error}", RETRY_SECONDS) from error

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """As `RunArchive`."""
        return next(iter(self._runs("WHERE job_id = ?", job_id)), None)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        return self._runs("WHERE client = ? ORDER BY created_at DESC, last_line DESC LIMIT ?", client, limit)

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        return self._runs("WHERE client = ? AND last_line > ? ORDER BY last_line DESC LIMIT ?", client, line, RUNS_PER_LOOK)

    def newest_line(self, client: Address) -> int:
        """As `RunArchive`."""
        row = self._reader.execute("SELECT max(last_line) FROM runs WHERE client = ?", (client,)).fetchone()
        return int(row[0] or 0)

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """As `RunArchive`."""
        query = "SELECT last_line, shown FROM runs WHERE last_line > ? ORDER BY last_line LIMIT ?"
        return [(int(last), json.loads(shown)) for last, shown in self._reader.execute(query, (line, limit))]

    def readers(self, output: Hash32) -> Readers | None:
        """As `RunArchive`."""
        row = self._reader.execute("SELECT lease, provider, client FROM outputs WHERE digest = ?", (output,)).fetchone()
        return None if row is None else Readers(Hash32(row[0]), Address(row[1]), Address(row[2]))

    def count(self) -> int:
        """As `RunArchive`."""
        return int(self._reader.execute("SELECT count(*) FROM runs").fetchone()[0])

    def close(self) -> None:
        """As `RunArchive`."""
        with self._lock:
            self._writer.close()
            self._reader.close()

    def _runs(self, where: str, *values: bytes | int) -> list[ArchivedRun]:
        rows = self._reader.execute(f"SELECT body FROM runs {where}", values)
        return [codec.from_json(ArchivedRun, codec.parse(body, len(body))) for (body,) in rows]


def _columns(over: ArchivedRun) -> tuple[bytes | int | str, ...]:
    run = over.run
    return run.job_id, run.client, run.created_at, over.last_line, json.dumps(row_of(over)), codec_text.encode(over)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Brings an older file up. There is one version yet; a change of `ArchivedRun` needs a second and a step from here to there."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise ArchiveDamaged(f"{path} was written by a newer program (version {found}, this one knows {VERSION}); start that one")
    if found == 0:
        connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
