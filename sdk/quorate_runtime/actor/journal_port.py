"""The interface of a journal. `Journal` (SQLite) and `MemoryJournal` (tests) implement it."""

from asyncio import Future
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from quorate_protocol.units import Hash32, UnixSeconds

KeyedEffect = tuple[str, bytes]
"""(idempotency key, encoded effect)."""


class Record(Struct, frozen=True):
    """One input of the core, encoded. `version` is that of the encoding of event and effects."""

    version: int
    at: UnixSeconds
    random: Hash32
    payload: bytes


class Stored(Struct, frozen=True):
    """A record with its offset. Offsets count from 1 without gaps."""

    offset: int
    record: Record


class Appended(Struct, frozen=True):
    """The result of a durable append. `fresh` are the keys of effects that no kept event had
    before. Only these are performed.
    """

    offset: int
    fresh: frozenset[str]


class Pending(Struct, frozen=True):
    """An effect that is not marked done. `version` is that of its encoding."""

    key: str
    offset: int
    version: int
    payload: bytes


class Snapshot(Struct, frozen=True):
    """The state after the event at `offset`. `version` is that of the codec that wrote it."""

    offset: int
    version: int
    payload: bytes


class JournalError(Exception):
    """The journal cannot be used. The message names the file and the remedy."""


class JournalBusy(JournalError):
    """Another process holds the folder."""


class JournalDamaged(JournalError):
    """The bytes on disk are not those that the journal wrote."""


class JournalFailed(JournalError):
    """An append could not be made durable. Nothing of its batch was acknowledged, and the process
    must end.
    """


class JournalPort(Protocol):
    """Keeps the events, the outbox and the snapshots of one daemon. All calls come from the thread
    of one event loop.
    """

    last_offset: int  # of the newest append, durable or not; 0 when empty
    problem: str  # why it waits with its appends; "" while it does not

    def append(self, record: Record, effects: Sequence[KeyedEffect]) -> Future[Appended]:
        """Queues one event with its effects. The future is done when they are on disk. Futures are
        done in the order of calls. After `JournalFailed` every later call fails too.
        """

    def replay(self, after: int) -> Iterator[Stored]:
        """Yields the durable events after offset `after`, in order. Events before the older of the
        two newest snapshots may be gone. Raises JournalDamaged at the first gap or wrong checksum.
        """

    def pending_effects(self) -> Sequence[Pending]: ...

    def mark_done(self, keys: Sequence[str]) -> Future[None]:
        """Marks effects as done: `pending_effects` never returns them again. The mark may wait a
        little, to be written together with an append.
        """

    def save_snapshot(self, snapshot: Snapshot) -> Future[None]:
        """Saves the state after an appended event, and deletes what only older snapshots needed."""

    def load_snapshot(self) -> Snapshot | None: ...

    async def close(self) -> None:
        """Writes what is queued and releases the folder. A second call changes nothing."""
