"""The store's index in SQLite: objects with their last use, pins with owner and end, reservations of work in progress.

The files decide what exists; the index can be rebuilt from them but for pins. Calls block and are safe from any thread.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OBJECT_BYTES_MIN = 64 * 1024  # what an object counts as at least against its owner's quota
FOREVER = 1 << 62

SCHEMA = """
create table if not exists object(cid text primary key, digest blob not null, size integer not null, stored integer not null,
  used_at real not null) without rowid;
create index if not exists object_digest on object(digest);
create table if not exists pin(cid text, owner text, until real not null, primary key(cid, owner)) without rowid;
create index if not exists pin_owner on pin(owner);
create table if not exists reservation(id text primary key, owner text not null, bytes integer not null) without rowid;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. `size`: bytes of its files; `stored`: with its nodes, what counts against quotas."""

    cid: str
    size: int
    stored: int


class Index:
    """One database file, shared by all processes that use the store."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._now = now
        self._guard = threading.Lock()
        self._base = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("pragma synchronous=normal")
        self._base.executescript(SCHEMA)

    def close(self) -> None:
        """Closes the database."""
        with self._guard:
            self._base.close()

    def find(self, cid: str) -> Entry | None:
        """The object's row."""
        with self._guard:
            row = self._base.execute("select cid, size, stored from object where cid = ?", (cid,)).fetchone()
        return None if row is None else Entry(*row)

    def find_digest(self, digest: bytes) -> str | None:
        """CID text of an object whose root block has this sha2-256."""
        with self._guard:
            row = self._base.execute("select cid from object where digest = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def all_cids(self) -> list[str]:
        """Every object."""
        with self._guard:
            return [str(row[0]) for row in self._base.execute("select cid from object")]

    def touch(self, cid: str) -> None:
        """Notes a use."""
        with self._guard:
            self._base.execute("update object set used_at = ? where cid = ?", (self._now(), cid))

    def add(self, cid: str, digest: bytes, size: int, stored: int, reservation: str) -> None:
        """A published object takes the place of its reservation."""
        with self._transaction():
            self._base.execute("insert or replace into object values(?, ?, ?, ?, ?)", (cid, digest, size, stored, self._now()))
            self._base.execute("delete from reservation where id = ?", (reservation,))

    def forget(self, cid: str) -> None:
        """The object is gone; so are its pins."""
        with self._transaction():
            self._base.execute("delete from object where cid = ?", (cid,))
            self._base.execute("delete from pin where cid = ?", (cid,))

    def pin(self, cid: str, owner: str, until: float | None, owner_quota: int) -> bool:
        """Pins, or prolongs; False when the owner's quota would be passed. Never shortens."""
        end = FOREVER if until is None else until
        with self._transaction():
            row = self._base.execute("select stored from object where cid = ?", (cid,)).fetchone()
            held = self._base.execute("select until from pin where cid = ? and owner = ?", (cid, owner)).fetchone()
            is_new = held is None or held[0] <= self._now()
            if is_new and row is not None and self._owned(owner) + row[0] > owner_quota:
                return False
            end = end if held is None else max(end, held[0])
            self._base.execute("insert or replace into pin values(?, ?, ?)", (cid, owner, end))
        return True

    def unpin(self, cid: str, owner: str) -> None:
        """Removes one owner's pin; others' stay."""
        with self._guard:
            self._base.execute("delete from pin where cid = ? and owner = ?", (cid, owner))

    def is_pinned(self, cid: str) -> bool:
        """Whether any pin is live."""
        with self._guard:
            return self._base.execute("select 1 from pin where cid = ? and until > ?", (cid, self._now())).fetchone() is not None

    def used(self) -> int:
        """Bytes of all objects and reservations."""
        with self._guard:
            return self._used()

    def reserve(self, work: str, owner: str, size: int, quota: int, owner_quota: int) -> int | None:
        """Books `size` bytes in total for one piece of work: 0 when done, the bytes missing in the store, None past the owner's quota."""
        with self._transaction():
            before = self._base.execute("select coalesce(sum(bytes), 0) from reservation where id = ?", (work,)).fetchone()[0]
            if self._owned(owner) - before + size > owner_quota:
                return None
            missing = self._used() - int(before) + size - quota
            if missing > 0:
                return missing
            self._base.execute("insert or replace into reservation values(?, ?, ?)", (work, owner, size))
        return 0

    def release(self, work: str) -> None:
        """Ends a reservation."""
        with self._guard:
            self._base.execute("delete from reservation where id = ?", (work,))

    def reservations(self) -> list[str]:
        """Ids of all work in progress or left behind."""
        with self._guard:
            return [str(row[0]) for row in self._base.execute("select id from reservation")]

    def idle(self, limit: int) -> list[Entry]:
        """Unpinned objects, least recently used first."""
        query = """select cid, size, stored from object where cid not in (select cid from pin where until > ?)
                   order by used_at, cid limit ?"""
        with self._guard:
            return [Entry(*row) for row in self._base.execute(query, (self._now(), limit))]

    def _used(self) -> int:
        query = "select (select coalesce(sum(stored), 0) from object) + (select coalesce(sum(bytes), 0) from reservation)"
        return int(self._base.execute(query).fetchone()[0])

    def _owned(self, owner: str) -> int:
        # A file costs its blocks on the disk and a row of each sum here: a million files of one byte are not a megabyte.
        pinned = f"""select coalesce(sum(max(stored, {OBJECT_BYTES_MIN})), 0) from object join pin using(cid)
                     where owner = ? and until > ?"""
        query = f"select ({pinned}) + (select coalesce(sum(bytes), 0) from reservation where owner = ?)"
        return int(self._base.execute(query, (owner, self._now(), owner)).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guard:
            self._base.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._base.execute("rollback")
                raise
            self._base.execute("commit")
