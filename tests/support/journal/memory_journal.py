"""A journal in memory for tests and the simulator, without a disk or a thread.

It behaves as `Journal` does: both pass the same tests.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quorate_protocol.values import replace
from quorate_runtime.actor.journal_port import (
    Appended,
    JournalBusy,
    JournalFailed,
    KeyedEffect,
    Pending,
    Record,
    Snapshot,
    Stored,
)

T = TypeVar("T")


@dataclass(slots=True)
class MemoryDisk:
    """What survives a crash of the process that had the journal open.

    `events_max` simulates a full disk.
    """

    events: list[Record] = field(default_factory=list)
    outbox: dict[str, tuple[Pending, bool]] = field(default_factory=dict)  # key -> (effect, done)
    snapshot: Snapshot | None = None
    events_max: int | None = None
    holder: object | None = None

    def crash(self) -> None:
        """Simulates a crash: the journal that used this disk is gone, with all that was not
        durable.
        """
        self.holder = None


class MemoryJournal:
    """`JournalPort` over a `MemoryDisk`.

    Appends become durable in batches, one turn of the event loop later.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        if disk.holder is not None:
            raise JournalBusy(
                "the disk is in use by another journal. Close it, or take a disk of its own."
            )
        disk.holder = self
        self.last_offset = len(disk.events)
        self.problem = ""
        self._disk = disk
        self._waiting: list[Callable[[], None]] = []
        self._failure: JournalFailed | None = None

    def append(
        self, record: Record, effects: Sequence[KeyedEffect] = ()
    ) -> asyncio.Future[Appended]:
        """See `JournalPort`."""
        self._check_usable()
        self.last_offset += 1
        offset = self.last_offset
        return self._queue(lambda: self._write_event(offset, record, effects))

    def mark_done(self, keys: Sequence[str]) -> asyncio.Future[None]:
        """See `JournalPort`."""
        self._check_usable()
        return self._queue(lambda: self._write_done(keys))

    def save_snapshot(self, snapshot: Snapshot) -> asyncio.Future[None]:
        """See `JournalPort`."""
        self._check_usable()
        assert 0 < snapshot.offset <= self.last_offset, "a snapshot follows an event"
        return self._queue(lambda: setattr(self._disk, "snapshot", snapshot))

    def replay(self, after: int = 0) -> Iterator[Stored]:
        """See `JournalPort`."""
        return (
            Stored(offset, record)
            for offset, record in enumerate(self._disk.events[after:], after + 1)
        )

    def pending_effects(self) -> Sequence[Pending]:
        """See `JournalPort`."""
        return [pending for pending, is_done in self._disk.outbox.values() if not is_done]

    def load_snapshot(self) -> Snapshot | None:
        """See `JournalPort`."""
        return self._disk.snapshot

    async def close(self) -> None:
        """See `JournalPort`."""
        self._flush()
        if self._disk.holder is self:
            self._disk.holder = None

    def _check_usable(self) -> None:
        assert self._disk.holder is self, "the journal is closed"
        if self._failure is not None:
            raise self._failure

    def _queue(self, write: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(lambda: self._settle(future, write))
        return future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for settle in waiting:
            settle()

    def _settle(self, future: "asyncio.Future[T]", write: Callable[[], T]) -> None:
        if self._disk.holder is not self:
            return  # crashed: no caller gets a result, and nothing reaches the disk
        if self._failure is None:
            try:
                value = write()
            except JournalFailed as error:
                # This and every later request get the error, as with the real journal.
                self._failure = error
            else:
                # The append stays even if its caller stopped waiting.
                if not future.done():
                    future.set_result(value)
                return
        if not future.done():
            future.set_exception(self._failure)

    def _write_event(self, offset: int, record: Record, effects: Sequence[KeyedEffect]) -> Appended:
        if self._disk.events_max is not None and len(self._disk.events) >= self._disk.events_max:
            raise JournalFailed(
                "an append could not be made durable (the disk is full). Free space, then start "
                "again."
            )
        self._disk.events.append(record)
        fresh = frozenset(key for key, _ in effects if key not in self._disk.outbox)
        for key, payload in effects:
            if key not in self._disk.outbox:
                self._disk.outbox[key] = (Pending(key, offset, record.version, payload), False)
        return Appended(offset, fresh)

    def _write_done(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self._disk.outbox:
                self._disk.outbox[key] = (replace(self._disk.outbox[key][0], payload=b""), True)
