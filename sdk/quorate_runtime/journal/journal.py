"""The journal in SQLite: one writer thread, and one fsync for all waiting appends (group commit).

SQLite runs in WAL mode with full sync. A batch of appends is one row.

It uses a thread and not aiosqlite, because there each statement costs two changes of thread. Here
one change serves a whole batch. On a disk that syncs in 0.1 ms, one caller gets about 4,000 appends
a second, and 128 callers about 70,000.

Durability needs a disk that honours fsync. SQLite drops an incomplete end of the WAL, which the
journal never acknowledged. Every batch has a checksum, because SQLite keeps none over the pages of
the main file.
"""

import asyncio
import fcntl
import logging
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

from quorate_runtime.actor.journal_port import (
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
from quorate_runtime.files import is_full
from quorate_runtime.journal import journal_files as files
from quorate_runtime.journal.journal_batch import pack_done, pack_event
from quorate_runtime.process.crash_points import crash_point

log = logging.getLogger(__name__)
BATCH_MAX = 1024  # requests in one transaction
BATCH_BYTES_MAX = 16 << 20  # their size; the last requests may exceed it
ROOM_SECONDS = 0.5  # between two tries on a full disk
LINGER_SECONDS = 0.02  # how long marks of done effects wait for an append, to share its fsync
# Requests wait for the end of the loop's turn. From this many on the writer gets them at once.
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
    """`JournalPort` over one folder. `commits` counts transactions, to measure the group commit."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.folder = folder
        self.commits = 0
        self.problem = ""
        self.last_offset = self._written = files.last_offset(connection)
        self._snapshots = files.snapshot_offsets(connection)
        self._outbox = files.read_outbox(connection, folder)
        self._lock = lock
        self._connection = connection  # only the writer thread uses it from here on
        self._gathered: list[_Request] = []  # requests of this turn of the loop
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
        """Locks the folder for this process and opens or creates its journal.

        `pages_max` limits the file in pages of 4 KiB; an append beyond it fails as on a full disk.
        Raises `JournalBusy` if another process has the folder, and `JournalDamaged` if the file is
        not what was written. Raises another `JournalError` if the disk, file rights or the limit of
        descriptors prevent the reading.
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
        self._check_usable()
        self.last_offset = offset = self.last_offset + 1
        fresh = self._outbox.add(offset, record.version, effects)
        future: asyncio.Future[Appended] = self._loop.create_future()
        appended = Appended(offset, frozenset([key for key, _ in fresh]))
        self._ask(_Append(pack_event(record, fresh), appended, future))
        return future

    def mark_done(self, keys: Sequence[str]) -> asyncio.Future[None]:
        self._check_usable()
        future: asyncio.Future[None] = self._loop.create_future()
        self._ask(_Done(pack_done(self._outbox.done(keys)), future))
        return future

    def save_snapshot(self, snapshot: Snapshot) -> asyncio.Future[None]:
        self._check_usable()
        assert 0 < snapshot.offset <= self.last_offset, "a snapshot follows an event"
        future: asyncio.Future[None] = self._loop.create_future()
        self._ask(_Save(snapshot, self._droppable(snapshot.offset), future))
        return future

    def _droppable(self, newest: int) -> files.Drop | None:
        """Returns what the writer may delete after a snapshot of event `newest`, or None if that is
        nothing.

        The journal never reads events before the oldest kept snapshot again. Without deletion the
        file would grow without end.
        """
        self._snapshots = sorted({*self._snapshots, newest})[-files.SNAPSHOTS_KEPT :]
        if len(self._snapshots) < files.SNAPSHOTS_KEPT:
            return None
        until = self._snapshots[0]
        self._outbox.forget(until)
        return files.Drop(until, self._outbox.carried(until))

    def replay(self, after: int = 0) -> Iterator[Stored]:
        return files.read_events(self.folder, after)

    def pending_effects(self) -> Sequence[Pending]:
        return self._outbox.pending()

    def load_snapshot(self) -> Snapshot | None:
        return files.read_snapshot(self.folder)

    async def close(self) -> None:
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
        """Keeps the request for the writer, which gets all requests of one turn together.

        Each time the writer wakes, it takes the interpreter's lock from the loop. A busy loop has
        many events in a turn, so this wakes the writer less often. In an idle loop a turn has one
        event, which does not wait.
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
                    # Not re-raised, because no one awaits this thread. Every waiting and every
                    # later append raises it.
                    self._tell(partial(self._fail, error, batch))
                    return
                self._tell(partial(_settle, results))

    def _gather(self) -> tuple[list[_Request], bool]:
        batch: list[_Request] = []
        is_lazy = True
        deadline: float | None = None
        size = 0
        while len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                requests = self._requests.get(is_lazy, wait)
            except queue.Empty:
                # Nothing else waits: the batch is complete.
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
        """Writes one transaction, and waits for room on a full disk. Raises if it is not on disk
        for another cause.
        """
        while True:
            before = self._written
            try:
                results = self._write_once(batch)
            except sqlite3.OperationalError:
                if self._closed or not is_full(self.folder, 2 * BATCH_BYTES_MAX):
                    raise
                # Not re-raised: nothing of the batch was acknowledged, and all of it is written
                # again. The frames of the failed transaction are no part of the file.
                self._written = before
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                full = f"the disk is full: check `df -h {self.folder}` and free some space"
                if not self.problem:
                    log.error("the journal waits, and nothing new is taken: %s", full)
                self.problem = full
                time.sleep(ROOM_SECONDS)
            else:
                self.problem = ""
                return results

    def _write_once(self, batch: list[_Request]) -> list[_Result]:
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
        """Writes and empties `parts`. Returns 0, the number of events that wait now."""
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
            # The loop was closed before the journal, so no caller waits. What is on
            # disk stays there.
            pass

    # ---- back on the loop's thread

    def _fail(self, error: Exception, batch: list[_Request]) -> None:
        """Fails every request of this batch and every queued one, so none is acknowledged. It runs
        on the loop's thread, as the appends do, so no append comes in between.
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
    """Takes an exclusive lock on the folder and returns its descriptor.

    The kernel releases the lock when the process ends. The file holds the process id, for people.
    Raises `JournalBusy` if another process has the lock.
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
