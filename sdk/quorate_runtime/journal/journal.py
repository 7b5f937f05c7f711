"""The journal: SQLite in WAL mode with full sync, one writer thread, one fsync and one row for
all who wait (group commit).

Why a thread and not aiosqlite: a call per statement costs two thread hops each; here one hop
serves a whole batch (a single caller gets about 4,000 appends a second, 128 callers about 70,000
on a disk that syncs in 0.1 ms). Durability rests on the disk honouring fsync. A torn tail of the
WAL was never acknowledged and is dropped by SQLite; every record carries a checksum, because
SQLite keeps none over the pages of the main file.
"""

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quorate_runtime.journal import journal_files as files
from quorate_runtime.journal.journal_batch import pack_done, pack_event
from quorate_runtime.journal.journal_port import (
    Appended,
    JournalBusy,
    JournalError,
    JournalFailed,
    KeyedEffect,
    Pending,
    Record,
    Snapshot,
    Stored,
)
from quorate_runtime.process.crash_points import crash_point

BATCH_MAX = 1024  # requests in one transaction
BATCH_BYTES_MAX = 16 << 20  # and their size, but for the last
LINGER_SECONDS = 0.02  # how long done-marks alone wait for an append to share its fsync
# requests of one turn of the loop that wait for its end: from here on the writer works beside it
HAND_OVER_MAX = 64


@dataclass(slots=True)
class _Append:
    data: bytes
    appended: Appended
    future: asyncio.Future[Appended]


@dataclass(slots=True)
class _Done:
    data: bytes
    future: asyncio.Future[None]


@dataclass(slots=True)
class _Save:
    snapshot: Snapshot
    drop: files.Drop | None
    future: asyncio.Future[None]


_Request = _Append | _Done | _Save
_Result = tuple[asyncio.Future[Any], Appended | None]


class Journal:
    """`JournalPort` over one folder. `commits` counts transactions, for the group commit's
    figures.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: int) -> None:
        """Use `open`."""
        self.folder = folder
        self.commits = 0
        self.last_offset = self._written = files.last_offset(connection)
        self._snapshots = files.snapshot_offsets(connection)
        self._outbox = files.read_outbox(connection, folder)
        self._lock = lock
        self._connection = connection  # the writer thread's alone from here on
        self._gathered: list[_Request] = []  # in this turn of the loop
        self._requests: queue.SimpleQueue[list[_Request] | None] = (
            queue.SimpleQueue()
        )  # bounded by the actor's appends in flight
        self._loop = asyncio.get_running_loop()
        self._failure: JournalFailed | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, folder: Path, pages_max: int | None = None) -> "Journal":
        """Takes the folder for this process and opens or creates its journal.

        `pages_max` bounds the file (4 KiB pages); an append beyond it fails like one on a full
        disk. `JournalBusy` when another process holds the folder, `JournalDamaged` when the file
        is not what was written, another `JournalError` while disk, rights or descriptors keep it
        from being read.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _lock_folder(folder)
        except OSError as error:
            raise JournalError(
                f"{folder}: {error.strerror or error}; make room, or give this user its rights, "
                f"then start again"
            ) from error
        try:
            connection = files.open_for_writing(folder, pages_max)
            try:
                return cls(folder, connection, lock)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            os.close(lock)
            raise

    def append(
        self, record: Record, effects: Sequence[KeyedEffect] = ()
    ) -> asyncio.Future[Appended]:
        """See `JournalPort`."""
        self._check_usable()
        self.last_offset = offset = self.last_offset + 1
        fresh = self._outbox.add(offset, record.version, effects)
        future: asyncio.Future[Appended] = self._loop.create_future()
        appended = Appended(offset, frozenset([key for key, _ in fresh]))
        self._ask(_Append(pack_event(record, fresh), appended, future))
        return future

    def mark_done(self, keys: Sequence[str]) -> asyncio.Future[None]:
        """See `JournalPort`."""
        self._check_usable()
        future: asyncio.Future[None] = self._loop.create_future()
        self._ask(_Done(pack_done(self._outbox.done(keys)), future))
        return future

    def save_snapshot(self, snapshot: Snapshot) -> asyncio.Future[None]:
        """See `JournalPort`."""
        self._check_usable()
        assert 0 < snapshot.offset <= self.last_offset, "a snapshot stands after an event"
        future: asyncio.Future[None] = self._loop.create_future()
        self._ask(_Save(snapshot, self._droppable(snapshot.offset), future))
        return future

    def _droppable(self, newest: int) -> files.Drop | None:
        """Events before the older of the snapshots that are kept are never read again: the file
        would grow without end.
        """
        self._snapshots = sorted({*self._snapshots, newest})[-files.SNAPSHOTS_KEPT :]
        if len(self._snapshots) < files.SNAPSHOTS_KEPT:
            return None
        until = self._snapshots[0]
        self._outbox.forget(until)
        return files.Drop(until, self._outbox.carried(until))

    def replay(self, after: int = 0) -> Iterator[Stored]:
        """See `JournalPort`."""
        return files.read_events(self.folder, after)

    def pending_effects(self) -> Sequence[Pending]:
        """See `JournalPort`."""
        return self._outbox.pending()

    def load_snapshot(self) -> Snapshot | None:
        """See `JournalPort`."""
        return files.read_snapshot(self.folder)

    async def close(self) -> None:
        """See `JournalPort`."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)
        os.close(self._lock)

    def _check_usable(self) -> None:
        assert not self._closed, "the journal is closed"
        if self._failure is not None:
            raise self._failure

    def _ask(self, request: _Request) -> None:
        """For the writer, with all others of this turn: each time that it wakes it takes the
        interpreter's lock from a busy loop, and a turn of a busy loop has many events while that
        of an idle one has one.
        """
        self._gathered.append(request)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)
        elif len(self._gathered) >= HAND_OVER_MAX:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathered:
            self._requests.put(self._gathered)
            self._gathered = []

    # ---- the writer thread

    def _write_all(self) -> None:
        with closing(self._connection):
            is_open = True
            while is_open:
                batch, is_open = self._gather()
                if not batch:
                    continue
                try:
                    results = self._write(batch)
                except Exception as error:  # noqa: BLE001
                    # Not re-raised here, where nobody would see it: it is the result of every
                    # waiting and every later append.
                    self._tell(partial(self._fail, error, batch))
                    return
                self._tell(partial(_settle, results))

    def _gather(self) -> tuple[list[_Request], bool]:
        """What waits, at most BATCH_MAX, and whether more may come."""
        batch: list[_Request] = []
        is_lazy = True
        deadline: float | None = None
        size = 0
        while len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                requests = self._requests.get(is_lazy, wait)
            except queue.Empty:
                # Nothing else waits: write what there is.
                break
            if requests is None:
                return batch, False
            batch += requests
            size += sum(
                [len(request.data) for request in requests if not isinstance(request, _Save)]
            )
            is_lazy = is_lazy and all(isinstance(request, _Done) for request in requests)
            deadline = deadline or time.monotonic() + LINGER_SECONDS
        return batch, True

    def _write(self, batch: list[_Request]) -> list[_Result]:
        """One transaction; returns what to tell each waiting caller. Raises when it is not on
        disk.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        results: list[_Result] = []
        parts: list[bytes] = []
        events = 0
        for request in batch:
            if isinstance(request, _Save):
                events = self._write_parts(parts, events)
                files.write_snapshot(self._connection, request.snapshot, request.drop)
                results.append((request.future, None))
                continue
            parts.append(request.data)
            if isinstance(request, _Append):
                events += 1
                results.append((request.future, request.appended))
            else:
                results.append((request.future, None))
        self._write_parts(parts, events)
        crash_point("journal.before-commit")
        self._connection.execute("COMMIT")
        crash_point("journal.after-commit")
        self.commits += 1
        return results

    def _write_parts(self, parts: list[bytes], events: int) -> int:
        """Writes and empties `parts`; 0 events wait then."""
        if parts:
            files.write_batch(
                self._connection, self._written + 1, self._written + events, b"".join(parts)
            )
            self._written += events
            parts.clear()
        return 0

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop was closed without closing the journal: nobody is left to be told, what is on
            # disk stays there.
            pass

    # ---- back on the loop's thread

    def _fail(self, error: Exception, batch: list[_Request]) -> None:
        """Nothing of this batch, nor of what was queued behind it, is acknowledged. Appends and
        this run on one thread.
        """
        self._failure = JournalFailed(
            f"{files.database(self.folder)}: an append could not be made durable ({error}). "
            "Free space or repair the disk, then start again."
        )
        self._failure.__cause__ = error
        self._hand_over()
        while not self._requests.empty():
            batch += self._requests.get_nowait() or []
        for request in batch:
            if not request.future.done():
                request.future.set_exception(self._failure)


def _settle(results: list[_Result]) -> None:
    for future, value in results:
        if not future.done():
            future.set_result(value)


def _lock_folder(folder: Path) -> int:
    """An exclusive flock, which the kernel lets go when the process ends in whatever way. The
    file names the holder for people.
    """
    lock = os.open(folder / "journal.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise JournalBusy(
            f"{folder} is in use by another process (pid {holder}). Stop it, or give this daemon "
            f"a folder of its own."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
