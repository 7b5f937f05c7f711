"""The coordinator's own documents (specs, receipts) on disk: one SQLite file, whose disk space no
account shares.

A document of a few kilobytes would cost two blocks and five syncs as a file of the content store;
here many share one sync.

Documents are kept for `keep_seconds`. When the file reaches its limit, the oldest are deleted
earlier, but none younger than `least_seconds`. If only such are left, writing raises `Unavailable`.
So an operator who gives too little space loses time but no receipt. The limit applies to the pages
that SQLite reports as used.
"""

import asyncio
import logging
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.durable import used_bytes
from quorate_runtime.optional import OptionalFile

log = logging.getLogger(__name__)
FRESH_SECONDS = DAY_SECONDS  # a document this young is not written again
BATCH_MAX = 256  # documents in one transaction
PRUNED_AT_ONCE = 512
NEARLY_FULL, TOLD_EVERY_SECONDS = 0.9, 3_600.0
SPARE_BYTES = 1 << 20  # kept free for the pages that a transaction needs
RETRY_SECONDS = 10.0
TABLES = """
CREATE TABLE documents (
    digest BLOB NOT NULL UNIQUE, at INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX documents_by_age ON documents (at);
"""


@dataclass(slots=True, eq=False)
class _Waiting:
    digest: Hash32
    data: bytes
    is_written: bool = False


class DocumentFile:
    """By their sha2-256. A thread writes, many documents in one transaction."""

    def __init__(
        self, path: Path, keeping: Keeping, now: Callable[[], float] = time.time, gone: str = ""
    ) -> None:
        """`gone` as in `OptionalFile`. Raises `FileNewer` if a newer program wrote the file."""
        self._path, self.keeping, self._now = path, keeping, now
        self._turn = asyncio.Lock()
        self._waiting: list[_Waiting] = []
        self._told_at = float("-inf")
        self._refused = ""  # why the last writing failed
        self.file = OptionalFile(path, (TABLES,), gone)

    @property
    def problem(self) -> str:
        return self.file.problem or self._refused

    def close(self) -> None:
        self.file.close()

    async def put(self, data: bytes) -> None:
        """Durable on return. Raises `Unavailable` while disk or file are full."""
        item = _Waiting(sha256(data), data)
        if self.is_fresh(item.digest):
            return
        self._waiting.append(item)
        async with self._turn:
            if item.is_written:
                return  # another caller's batch has written it
            batch = [item, *(other for other in self._waiting if other is not item)][:BATCH_MAX]
            self._waiting = [other for other in self._waiting if other not in batch]
            try:
                await asyncio.to_thread(self._write, batch)
            except Unavailable as error:
                # The other documents' callers try again, one after the other.
                self._waiting = batch[1:] + self._waiting
                self._refused = str(error)
                raise
            self._refused = ""

    async def drop(self, digests: Sequence[Hash32]) -> None:
        """Raises `Unavailable` while the disk does not take it."""
        async with self._turn:
            await asyncio.to_thread(self._drop, digests)

    def _drop(self, digests: Sequence[Hash32]) -> None:
        with self.file.writing("does not give up documents") as writer:
            writer.executemany(
                "DELETE FROM documents WHERE digest = ?", [(digest,) for digest in digests]
            )

    def get(self, digest: Hash32) -> bytes | None:
        """None when it was never stored or has been deleted."""
        row = self._row("size, body", digest)
        if row is None:
            return None
        try:
            data = zlib.decompressobj().decompress(row[1], row[0])
        except zlib.error:
            data = b""  # not re-raised: reported below, with all other damage
        if sha256(data) != digest:
            raise self.file.damaged(f"document 0x{digest.hex()} is not what was stored")
        return data

    def is_fresh(self, digest: Hash32) -> bool:
        """Stored within the last day."""
        row = self._row("at", digest)
        return row is not None and row[0] > self._now() - FRESH_SECONDS

    def _row(self, columns: str, digest: Hash32) -> tuple[Any, ...] | None:
        """`Unavailable` while the file cannot be read."""
        with self.file.reading() as reader:
            found: tuple[Any, ...] | None = reader.execute(
                f"SELECT {columns} FROM documents WHERE digest = ?", (digest,)
            ).fetchone()
        return found

    def used_bytes(self) -> int:
        return self.file.used_bytes()

    @property
    def is_nearly_full(self) -> bool:
        """Only receipts of jobs that are under way may still be stored."""
        if self.used_bytes() <= NEARLY_FULL * (self.keeping.bytes_max - SPARE_BYTES):
            return False
        with self.file.reading() as reader:
            oldest = reader.execute("SELECT min(at) FROM documents").fetchone()[0]
        return bool(oldest is None or oldest >= int(self._now()) - self.keeping.least_seconds)

    def _write(self, batch: Sequence[_Waiting]) -> None:
        at = int(self._now())
        rows = [(item.digest, at, len(item.data), zlib.compress(item.data, 1)) for item in batch]
        with self.file.writing("does not take documents") as writer:
            writer.execute("BEGIN IMMEDIATE")
            self._make_room(writer, at, sum(len(body) for *_, body in rows))
            writer.executemany(
                "INSERT INTO documents VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET "
                "at "
                "= excluded.at",
                rows,
            )
            used = used_bytes(writer)
        for item in batch:
            item.is_written = True
        self._tell_of_room(at, used)

    def _tell_of_room(self, at: int, used: int) -> None:
        """A full file makes the coordinator wait for its operator."""
        most = self.keeping.bytes_max - SPARE_BYTES
        if used > NEARLY_FULL * most and at - self._told_at >= TOLD_EVERY_SECONDS:
            self._told_at = at
            log.warning(
                "%s takes %d of its %d bytes; unless its oldest may go, --documents-size has "
                "to grow",
                self._path,
                used,
                most,
            )

    def _make_room(self, writer: sqlite3.Connection, at: int, wanted: int) -> None:
        """Documents past their time first, then the oldest others, as far as allowed."""
        self._prune(writer, at - self.keeping.keep_seconds)
        while used_bytes(writer) + wanted > self.keeping.bytes_max - SPARE_BYTES:
            if not self._prune(writer, at - self.keeping.least_seconds):
                raise Unavailable(
                    f"{self._path} has reached its bound of {self.keeping.bytes_max} bytes, with "
                    f"documents younger than "
                    f"{self.keeping.least_seconds // DAY_SECONDS} days: give it more, `quorate "
                    f"coordinator up --documents-size SIZE`",
                    RETRY_SECONDS,
                )

    def _prune(self, writer: sqlite3.Connection, before: int) -> int:
        """Up to `PRUNED_AT_ONCE`; returns how many."""
        query = (
            "DELETE FROM documents WHERE rowid IN (SELECT rowid FROM documents WHERE at < ? "
            "ORDER BY at LIMIT ?)"
        )
        return writer.execute(query, (before, PRUNED_AT_ONCE)).rowcount
