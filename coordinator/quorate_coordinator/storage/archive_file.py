"""The archive on disk: one SQLite file that only this process writes. Nothing can rebuild it, so it
is never emptied.

If a newer program has written the file, the start ends with a sentence. While the file cannot be
read, finished runs wait in the state, requests for archived runs get `Unavailable`, and jobs go on.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage.archive import (
    RUNS_PER_LOOK,
    EndPosition,
    LogLine,
    Readers,
    Row,
    document_rows_of,
    end_position_of,
    readers_of,
    row_of,
)
from quorate_coordinator.storage.document_readers import EVERYBODY
from quorate_protocol.codec import packed
from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.optional import OptionalFile

WRITING = "does not take finished runs"
VERSION = 7  # the first that is read; earlier ones held other runs
_RUN: Packed[ArchivedRun] = Packed(ArchivedRun)
TABLES = """
CREATE TABLE runs (
    job_id BLOB PRIMARY KEY, client BLOB NOT NULL, created_at INTEGER NOT NULL,
    last_line INTEGER NOT NULL, shown TEXT NOT NULL, body BLOB NOT NULL, over_at INTEGER NOT NULL
);
CREATE INDEX runs_by_age ON runs (client, created_at, last_line);
CREATE INDEX runs_by_client_line ON runs (client, last_line);
CREATE INDEX runs_by_line ON runs (last_line);
CREATE INDEX runs_by_end ON runs (over_at, job_id);
CREATE TABLE outputs (
    digest BLOB PRIMARY KEY, lease BLOB NOT NULL, provider BLOB NOT NULL, client BLOB NOT NULL,
    is_public INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE documents (
    digest BLOB, account BLOB, job_id BLOB, PRIMARY KEY (digest, account, job_id)
) WITHOUT ROWID;
CREATE TABLE left_outputs (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE gone (only INTEGER PRIMARY KEY CHECK (only = 1), runs INTEGER NOT NULL);
INSERT INTO gone VALUES (1, 0);
"""
LOG_TABLE = "CREATE TABLE log (seq INTEGER PRIMARY KEY, line BLOB NOT NULL);"


class FileArchive:
    """`RunArchive` in a SQLite file."""

    def __init__(self, path: Path, gone: str = "") -> None:
        """Opens or makes the file, now or as soon as that is possible; `gone` as in `OptionalFile`.
        Raises `FileNewer` if a newer program wrote it.
        """
        self.file = OptionalFile(path, (TABLES, LOG_TABLE), gone, VERSION)

    @property
    def problem(self) -> str:
        """Why it cannot be used, as a sentence."""
        return self.file.problem

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """As `RunArchive`. `Unavailable` while the disk does not take the runs."""
        rows = [_columns(run) for run in runs]
        outputs = [
            (digest, item.assignment_hash, item.provider, item.client, item.is_public)
            for run in runs
            for digest, item in readers_of(run)
        ]
        documents = _document_rows(runs)
        with self.file.writing(WRITING) as writer:
            writer.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            # The first lease keeps an output. A provider that names another's output while the
            # archive is away does not get it by being archived later.
            writer.executemany("INSERT OR IGNORE INTO outputs VALUES (?, ?, ?, ?, ?)", outputs)
            writer.executemany("INSERT OR IGNORE INTO documents VALUES (?, ?, ?)", documents)

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """As `RunArchive`."""
        return next(iter(self._runs("WHERE job_id = ?", job_id)), None)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        return self._runs(
            "WHERE client = ? ORDER BY created_at DESC, last_line DESC LIMIT ?", client, limit
        )

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        return self._runs(
            "WHERE client = ? AND last_line > ? ORDER BY last_line DESC LIMIT ?",
            client,
            line,
            RUNS_PER_LOOK,
        )

    def newest_line(self, client: Address) -> int:
        """As `RunArchive`."""
        return int(
            self._read("SELECT max(last_line) FROM runs WHERE client = ?", client)[0][0] or 0
        )

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """As `RunArchive`."""
        query = "SELECT last_line, shown FROM runs WHERE last_line > ? ORDER BY last_line LIMIT ?"
        # One statement reads whole rows, because another thread may delete runs at any time.
        return [(int(last), json.loads(shown)) for last, shown in self._read(query, line, limit)]

    def readers(self, output: Hash32) -> Readers | None:
        """As `RunArchive`."""
        query = "SELECT lease, provider, client, is_public FROM outputs WHERE digest = ?"
        for lease, provider, client, is_public in self._read(query, output):
            return Readers(Hash32(lease), Address(provider), Address(client), bool(is_public))
        return None

    def has_document(self, document: Hash32, account: Address | None) -> bool:
        """As `RunArchive`."""
        if account is None:
            return bool(self._read("SELECT 1 FROM documents WHERE digest = ? LIMIT 1", document))
        query = "SELECT 1 FROM documents WHERE digest = ? AND account IN (?, ?) LIMIT 1"
        return bool(self._read(query, document, account, EVERYBODY))

    def count(self) -> int:
        """As `RunArchive`."""
        query = "SELECT (SELECT count(*) FROM runs) + (SELECT runs FROM gone)"
        return int(self._read(query)[0][0])

    def used_bytes(self) -> int:
        """As `RunArchive`, without free pages of the file."""
        return self.file.used_bytes()

    def ended_before(
        self, moment: int, after: EndPosition, limit: int
    ) -> list[tuple[EndPosition, ArchivedRun]]:
        """As `RunArchive`."""
        query = (
            "SELECT over_at, job_id, body FROM runs WHERE over_at < ? AND (over_at, job_id) > "
            "(?, ?) ORDER BY over_at, job_id LIMIT ?"
        )
        with self.file.writing("cannot be read") as writer:
            rows = writer.execute(query, (moment, *after, limit)).fetchall()
        return [((int(at), Hash32(job_id)), self._decoded(body)) for at, job_id, body in rows]

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """As `RunArchive`. `Unavailable` while the disk does not take it."""
        outputs = [digest for run in runs for digest, _ in readers_of(run)]
        with self.file.writing(WRITING) as writer:
            changed = writer.executemany(
                "DELETE FROM runs WHERE job_id = ?", [(run.run.job_id,) for run in runs]
            ).rowcount
            writer.execute("UPDATE gone SET runs = runs + ?", (changed,))
            writer.executemany(
                "DELETE FROM documents WHERE digest = ? AND account = ? AND job_id = ?",
                _document_rows(runs),
            )
            writer.executemany(
                "DELETE FROM outputs WHERE digest = ?",
                [(digest,) for digest in outputs if digest not in stored],
            )
            writer.executemany(
                "INSERT OR IGNORE INTO left_outputs VALUES (?)",
                [(digest,) for digest in outputs if digest in stored],
            )

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        """As `RunArchive`."""
        query = "SELECT digest FROM left_outputs WHERE digest > ? ORDER BY digest LIMIT ?"
        with self.file.writing("cannot be read") as writer:
            return [Hash32(digest) for (digest,) in writer.execute(query, (after, limit))]

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """As `RunArchive`. `Unavailable` while the disk does not take it."""
        named = [(digest,) for digest in outputs]
        with self.file.writing(WRITING) as writer:
            writer.executemany(
                (
                    "DELETE FROM outputs WHERE digest IN (SELECT digest FROM left_outputs WHERE "
                    "digest = ?)"
                ),
                named,
            )
            writer.executemany("DELETE FROM left_outputs WHERE digest = ?", named)

    def append(self, lines: Sequence[LogLine]) -> None:
        """As `RunArchive`. `Unavailable` while the disk does not take the lines."""
        with self.file.writing("does not take lines of the log") as writer:
            # A replayed effect brings the same bytes. Others come only from a journal that its
            # operator put back and said to be the newest.
            writer.executemany("INSERT OR REPLACE INTO log VALUES (?, ?)", lines)

    def lines_after(self, seq: int, limit: int) -> list[LogLine]:
        """As `RunArchive`."""
        query = "SELECT seq, line FROM log WHERE seq > ? ORDER BY seq LIMIT ?"
        with self.file.writing("cannot be read") as writer:
            return [(int(at), bytes(line)) for at, line in writer.execute(query, (seq, limit))]

    def line_count(self) -> int:
        """As `RunArchive`."""
        return int(self._read("SELECT coalesce(max(seq) + 1, 0) FROM log")[0][0])

    def close(self) -> None:
        """As `RunArchive`."""
        self.file.close()

    def _runs(self, where: str, *values: bytes | int) -> list[ArchivedRun]:
        return [
            self._decoded(body) for (body,) in self._read(f"SELECT body FROM runs {where}", *values)
        ]

    def _read(self, query: str, *values: bytes | int) -> list[tuple[Any, ...]]:
        with self.file.reading() as reader:
            return reader.execute(query, values).fetchall()

    def _decoded(self, body: bytes) -> ArchivedRun:
        try:
            return _RUN.decode(body)
        except Refused as error:
            raise self.file.damaged(f"a run in it cannot be decoded ({error})") from error


def _document_rows(runs: Sequence[ArchivedRun]) -> list[tuple[bytes, bytes, bytes]]:
    return [
        (digest, account, run.run.job_id)
        for run in runs
        for digest, account in document_rows_of(run)
    ]


def _columns(over: ArchivedRun) -> tuple[bytes | int | str, ...]:
    run = over.run
    over_at, _ = end_position_of(over)
    return (
        run.job_id,
        run.client,
        run.created_at,
        over.last_line,
        json.dumps(row_of(over)),
        packed.encode(over),
        over_at,
    )
