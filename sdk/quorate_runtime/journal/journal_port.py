"""What a journal is, whatever it is kept in: the port that `Journal` (SQLite) and
`MemoryJournal` (tests) both implement.
"""

from asyncio import Future
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from quorate_protocol.units import Hash32, UnixSeconds

KeyedEffect = tuple[str, bytes]
"""Idempotency key and encoded effect."""


class Record(Struct, frozen=True):
    """One journaled input: `version` is that of the encoding of event and effects."""

    version: int
    at: UnixSeconds
    random: Hash32
    payload: bytes


class Stored(Struct, frozen=True):
    """A record at its offset; offsets count from 1 without gaps."""

    offset: int
    record: Record


class Appended(Struct, frozen=True):
    """A durable append. `fresh` are the keys that no event had which is still kept: only these
    effects are to be performed.
    """

    offset: int
    fresh: frozenset[str]


class Pending(Struct, frozen=True):
    """An effect that was not marked done; `version` is its encoding's."""

    key: str
    offset: int
    version: int
    payload: bytes


class Snapshot(Struct, frozen=True):
    """State after the event at `offset`; `version` is that of the code that wrote it."""

    offset: int
    version: int
    payload: bytes


class JournalError(Exception):
    """The journal cannot be used; the message names the file and the remedy."""


class JournalBusy(JournalError):
    """Another process holds the folder."""


class JournalDamaged(JournalError):
    """What is on disk is not what was written."""


class JournalFailed(JournalError):
    """An append could not be made durable: nothing of its batch was acknowledged, and the
    process must end.
    """


class JournalPort(Protocol):
    """Events, the outbox and snapshots of one daemon. All calls come from the thread of one
    event loop.
    """

    last_offset: int  # of the newest append, durable or not; 0 when empty

    def append(self, record: Record, effects: Sequence[KeyedEffect]) -> Future[Appended]:
        """Queues one event with its effects; done, in order of calls, when they are on disk.
        `JournalFailed` ends everything.
        """

    def replay(self, after: int) -> Iterator[Stored]:
        """Durable events with larger offsets, in order; `JournalDamaged` at the first gap or
        wrong checksum.

        Events before the older of the two newest snapshots may be gone.
        """

    def pending_effects(self) -> Sequence[Pending]:
        """Effects not marked done, in the order in which they were decided."""

    def mark_done(self, keys: Sequence[str]) -> Future[None]:
        """Never hands these effects out again. May be written a little later than asked,
        together with an append.
        """

    def save_snapshot(self, snapshot: Snapshot) -> Future[None]:
        """Keeps the state after an offset that was appended before; drops what only older
        snapshots needed.
        """

    def load_snapshot(self) -> Snapshot | None:
        """The newest snapshot."""

    async def close(self) -> None:
        """Writes what is queued and lets go of the folder. Repeating it changes nothing."""
