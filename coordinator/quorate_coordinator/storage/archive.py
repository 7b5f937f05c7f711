"""The archive stores finished runs that have left the state, in one SQLite file that only this
process writes. Nothing can rebuild it, so it is never emptied; `retention` deletes old runs.

If a newer program has written the file, the start ends with a sentence. While the file cannot be
read, finished runs wait in the state, requests for archived runs get `Unavailable`, and jobs go on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.phase_names import ending_name
from quorate_coordinator.storage.document_readers import EVERYBODY, rows_of
from quorate_coordinator.storage.document_readers import Row as DocumentRow
from quorate_protocol.codec import packed
from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Hash32
from quorate_runtime.optional import OptionalFile

LogLine = tuple[int, bytes]
"""A line of the public log: its number, and the canonical bytes of its envelope."""
Row = Mapping[str, str | int | None]
RUNS_PER_LOOK = 512  # of one client, for a stream that reconnects after a long time


@dataclass(frozen=True, slots=True)
class Readers:
    """Who may read a sealed output, and the assignment that made it."""

    assignment_hash: Hash32
    provider: Address
    client: Address
    is_public: bool = False

    def has(self, account: Address | None) -> bool:
        return self.is_public or account in (self.provider, self.client)


EndPosition = tuple[int, Hash32]
"""(second in which a run ended, its job): the order in which old runs are deleted."""
BEFORE_ALL_RUNS: EndPosition = (0, ZERO_HASH)
WRITING = "does not take finished runs"
VERSION = 8  # the first that is read; earlier ones held other runs
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
    """Look-ups are short and come from the event loop's thread. `keep`, `append` and what deletes
    may come from another one, and raise `Unavailable` while the disk does not take it.
    """

    def __init__(self, path: Path, gone: str = "") -> None:
        """`gone` as in `OptionalFile`. Raises `FileNewer` if a newer program wrote the file."""
        self.file = OptionalFile(path, (TABLES, LOG_TABLE), gone, VERSION)

    @property
    def problem(self) -> str:
        return self.file.problem

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """All or none, durable on return. A run that is stored already is replaced."""
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
        return next(iter(self._runs("WHERE job_id = ?", job_id)), None)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        return self._runs(
            "WHERE client = ? ORDER BY created_at DESC, last_line DESC LIMIT ?", client, limit
        )

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """Those with a history line after `line`, at most `RUNS_PER_LOOK`: the newest first."""
        return self._runs(
            "WHERE client = ? AND last_line > ? ORDER BY last_line DESC LIMIT ?",
            client,
            line,
            RUNS_PER_LOOK,
        )

    def newest_line(self, client: Address) -> int:
        """0 when there are none."""
        return int(
            self._read("SELECT max(last_line) FROM runs WHERE client = ?", client)[0][0] or 0
        )

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """(newest line, row of the SQL tables), oldest first."""
        query = "SELECT last_line, shown FROM runs WHERE last_line > ? ORDER BY last_line LIMIT ?"
        # One statement reads whole rows, because another thread may delete runs at any time.
        return [(int(last), json.loads(shown)) for last, shown in self._read(query, line, limit)]

    def readers(self, output: Hash32) -> Readers | None:
        query = "SELECT lease, provider, client, is_public FROM outputs WHERE digest = ?"
        for lease, provider, client, is_public in self._read(query, output):
            return Readers(Hash32(lease), Address(provider), Address(client), bool(is_public))
        return None

    def has_document(self, document: Hash32, account: Address | None) -> bool:
        """Whether a stored run lets this account (None: any) read its spec or receipt."""
        if account is None:
            return bool(self._read("SELECT 1 FROM documents WHERE digest = ? LIMIT 1", document))
        query = "SELECT 1 FROM documents WHERE digest = ? AND account IN (?, ?) LIMIT 1"
        return bool(self._read(query, document, account, EVERYBODY))

    def count(self) -> int:
        """Returns how many runs were ever written, deleted ones included."""
        query = "SELECT (SELECT count(*) FROM runs) + (SELECT runs FROM gone)"
        return int(self._read(query)[0][0])

    def used_bytes(self) -> int:
        """Without free pages of the file."""
        return self.file.used_bytes()

    def ended_before(
        self, moment: int, after: EndPosition, limit: int
    ) -> list[tuple[EndPosition, ArchivedRun]]:
        """Oldest first. Other threads may call it."""
        query = (
            "SELECT over_at, job_id, body FROM runs WHERE over_at < ? AND (over_at, job_id) > "
            "(?, ?) ORDER BY over_at, job_id LIMIT ?"
        )
        with self.file.writing("cannot be read") as writer:
            rows = writer.execute(query, (moment, *after, limit)).fetchall()
        return [((int(at), Hash32(job_id)), self._decoded(body)) for at, job_id, body in rows]

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """Deletes these runs for good. For outputs in `stored` it keeps who may read them."""
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
        """Outputs of deleted runs whose readers are still kept, sorted. Any thread may call it."""
        query = "SELECT digest FROM left_outputs WHERE digest > ? ORDER BY digest LIMIT ?"
        with self.file.writing("cannot be read") as writer:
            return [Hash32(digest) for (digest,) in writer.execute(query, (after, limit))]

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """Deletes who may read these outputs, because the content store no longer has them."""
        named = [(digest,) for digest in outputs]
        with self.file.writing(WRITING) as writer:
            writer.executemany(
                "DELETE FROM outputs WHERE digest IN (SELECT digest FROM left_outputs WHERE "
                "digest = ?)",
                named,
            )
            writer.executemany("DELETE FROM left_outputs WHERE digest = ?", named)

    def append(self, lines: Sequence[LogLine]) -> None:
        """Writes lines of the public log, all or none. What is stored already is replaced."""
        with self.file.writing("does not take lines of the log") as writer:
            # A replayed effect brings the same bytes. Others come only from a journal that its
            # operator put back and said to be the newest.
            writer.executemany("INSERT OR REPLACE INTO log VALUES (?, ?)", lines)

    def lines_after(self, seq: int, limit: int) -> list[LogLine]:
        """Any thread may call it."""
        query = "SELECT seq, line FROM log WHERE seq > ? ORDER BY seq LIMIT ?"
        with self.file.writing("cannot be read") as writer:
            return [(int(at), bytes(line)) for at, line in writer.execute(query, (seq, limit))]

    def line_count(self) -> int:
        return int(self._read("SELECT coalesce(max(seq) + 1, 0) FROM log")[0][0])

    def close(self) -> None:
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


def end_position_of(over: ArchivedRun) -> EndPosition:
    """A run ended in the second of its newest history line."""
    return (over.lines[-1].at if over.lines else over.run.created_at), over.run.job_id


def row_of(over: ArchivedRun) -> Row:
    """Made once. `status.rows.run_row` makes the same row of a run in the state."""
    run = over.run
    outcome = run.verdict.message.outcome.name.lower() if run.verdict is not None else None
    ending = ending_name(
        run.phase,
        outcome,
        is_charged=run.charged > 0,
        is_stopped=any(line.name == "stopped" for line in over.lines),
    )
    published = [execution for execution in run.executions if execution.role != "unknown"]
    return {
        "job_id": run.job_id.hex(),
        "client": run.client.hex(),
        "name": run.name,
        "pool": over.pool.hex(),
        "phase": run.phase,
        "rule": run.rule.name.lower(),
        "outcome": outcome,
        "ending": ending,
        "executions": len(published),
        "audits": max(0, len(published) - 1),
        "outvoted": sum(execution.agreed is False for execution in published)
        if outcome == "accepted"
        else 0,
        "charged": run.charged,
        "fee": over.fee,
        "created_at": run.created_at,
        "receipt_cid": run.receipt_cid,
    }


def readers_of(run: ArchivedRun) -> Iterator[tuple[Hash32, Readers]]:
    """(ciphertext, who may read it) for every output that a provider committed to. The client of a
    run that was not charged may read none: `ZERO_ADDRESS` stands in its place.
    """
    client = run.run.client if run.run.output is not None else ZERO_ADDRESS
    for lease in run.leases:
        if lease.output is not None:
            is_public = run.is_public and run.run.output is not None
            yield (lease.output, Readers(lease.assignment_hash, lease.provider, client, is_public))


def document_rows_of(run: ArchivedRun) -> tuple[DocumentRow, ...]:
    kept = (run.spec_hash, run.terms_hash) if run.is_paid_for else ()
    return rows_of(kept, run.run.receipt_cid, run.run.client, run.is_public)
