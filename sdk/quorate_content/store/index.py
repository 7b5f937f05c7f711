"""The store's index in SQLite: objects with last use, pins, reservations of work in progress, and
sums by owner.

The files decide what exists. The index can be rebuilt from them, except for the pins. Calls block
and are safe from any thread. Triggers keep the sums, so that no statement can forget them; opening
the index recomputes them.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from quorate_protocol.refusals import Unavailable
from quorate_runtime.durable import SMALL_CACHE
from quorate_runtime.files import private_file

OBJECT_BYTES_MIN = 64 * 1024  # the least that one object counts against its owner's quota
FOREVER = 1 << 62
WEIGHT_MAX = 1 << 40
OWNERS_LOOKED_AT = 4096
PINS_LOOKED_AT = 65_536
RETRY_SECONDS = 10.0

SCHEMA = """
begin immediate;
create table if not exists object(cid text primary key, digest blob not null,
  size integer not null, stored integer not null, used_at real not null,
  pins integer not null default 0) without rowid;
create index if not exists object_digest on object(digest);
create index if not exists object_idle on object(used_at, cid) where pins = 0;
create table if not exists pin(cid text, owner text, until real not null,
  counted integer not null default 0,
  primary key(cid, owner)) without rowid;
drop index if exists pin_owner;
create index if not exists pin_by_owner on pin(owner, until);
create index if not exists pin_by_end on pin(until);
create table if not exists reservation(id text primary key, owner text not null,
  bytes integer not null) without rowid;
create table if not exists owner(name text primary key, bytes integer not null,
  weight integer not null default 1) without rowid;
create table if not exists total(id integer primary key check (id = 0), bytes integer not null);
insert or ignore into total values(0, 0);
create trigger if not exists object_comes after insert on object begin
  update total set bytes = bytes + new.stored; end;
create trigger if not exists object_goes after delete on object begin
  update total set bytes = bytes - old.stored; end;
create trigger if not exists object_moves after update of stored on object begin
  update total set bytes = bytes + new.stored - old.stored; end;
create trigger if not exists pin_comes after insert on pin begin
  update object set pins = pins + 1 where cid = new.cid;
  insert into owner(name, bytes) values(new.owner, new.counted)
    on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists pin_goes after delete on pin begin
  update object set pins = pins - 1 where cid = old.cid;
  update owner set bytes = bytes - old.counted where name = old.owner; end;
create trigger if not exists reservation_comes after insert on reservation begin
  update total set bytes = bytes + new.bytes;
  insert into owner(name, bytes) values(new.owner, new.bytes)
    on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists reservation_goes after delete on reservation begin
  update total set bytes = bytes - old.bytes;
  update owner set bytes = bytes - old.bytes where name = old.owner; end;
create trigger if not exists reservation_moves after update of bytes on reservation begin
  update total set bytes = bytes + new.bytes - old.bytes;
  insert into owner(name, bytes) values(new.owner, new.bytes - old.bytes)
    on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists owner_has_nothing after update of bytes on owner
  when new.bytes = 0 begin
  delete from owner where name = new.name; end;
pragma user_version = 2;
commit;
"""

REBUILD = f"""
begin immediate;
delete from owner where name not in
  (select owner from pin union select owner from reservation);
update pin set counted = max({OBJECT_BYTES_MIN},
  coalesce((select stored from object where object.cid = pin.cid), 0)) where counted = 0;
insert into owner(name, bytes) select name, sum(bytes) from (
    select owner as name, counted as bytes from pin
    union all select owner as name, bytes from reservation
  ) where true group by name on conflict(name) do update set bytes = excluded.bytes;
update total set bytes = (select coalesce(sum(stored), 0) from object)
  + (select coalesce(sum(bytes), 0) from reservation);
update object set pins = (select count(*) from pin where pin.cid = object.cid)
  where pins != (select count(*) from pin where pin.cid = object.cid);
commit;
"""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One stored object. `size` counts the bytes of its files; `stored` adds its nodes and counts
    against quotas.
    """

    cid: str
    size: int
    stored: int


@dataclass(frozen=True, slots=True)
class ListedObject:
    """A stored object as lists show it. `size` counts the bytes of its files."""

    cid: str
    size: int
    is_pinned: bool


class PinNeed(Enum):
    """Who needs stored content: nobody, its owner, or another account to which the store has
    promised it.
    """

    NONE = 0
    USED = 1
    PROMISED = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """The account for which content is kept.

    `quota_bytes`: None means the store's quota for every owner. `weight`: in a full store, owners
    that hold most for their weight lose pins first. `remedy`: what the owner can do after a
    refusal.
    """

    name: str
    quota_bytes: int | None = None
    weight: int = 1
    remedy: str = "unpin something"


@dataclass(frozen=True, slots=True)
class PinTransfer:
    """Orders that the object with this digest is pinned for `taker` until `until`, and no longer
    for `giver`.
    """

    digest: bytes
    giver: str
    taker: Owner
    until: float


def owner_of(owner: str | Owner) -> Owner:
    return owner if isinstance(owner, Owner) else Owner(owner)


class Index:
    """One database file, shared by all processes that use the store."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._now = now
        self._guard = threading.Lock()
        private_file(path)
        self._base = sqlite3.connect(
            path, timeout=30.0, isolation_level=None, check_same_thread=False
        )
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("pragma synchronous=normal")
        self._base.execute(SMALL_CACHE)
        self._base.executescript(SCHEMA)
        self._base.executescript(REBUILD)

    def close(self) -> None:
        with self._guard:
            self._base.close()

    # -------------------------------------------------------------------------------------- objects

    def find(self, cid: str) -> StoredObject | None:
        rows = self._rows("select cid, size, stored from object where cid = ?", cid)
        return StoredObject(*rows[0]) if rows else None

    def find_digest(self, digest: bytes) -> str | None:
        rows = self._rows("select cid from object where digest = ?", digest)
        return str(rows[0][0]) if rows else None

    def all_cids(self) -> list[str]:
        return [str(cid) for (cid,) in self._rows("select cid from object")]

    def objects(self) -> list[ListedObject]:
        with self._transaction():
            self._delete_expired_pins()
            rows = self._base.execute("select cid, size, pins > 0 from object order by cid")
            return [ListedObject(cid, size, bool(pinned)) for cid, size, pinned in rows]

    def touch(self, cid: str) -> None:
        """Records a use. Within a second it does not write again, because readers of blocks come in
        thousands.
        """
        query = "update object set used_at = ? where cid = ? and used_at < ?"
        now = self._now()
        with self._locked():
            self._base.execute(query, (now, cid, now - 1))

    def add(self, cid: str, digest: bytes, size: int, stored: int, reservation: str) -> None:
        query = """insert into object select ?, ?, ?, ?, ?, count(*) from pin where cid = ?
                   on conflict(cid) do update
                   set size = excluded.size, stored = excluded.stored, used_at = excluded.used_at"""
        with self._transaction():
            self._base.execute(query, (cid, digest, size, stored, self._now(), cid))
            self._base.execute("delete from reservation where id = ?", (reservation,))

    def forget(self, cid: str) -> None:
        with self._transaction():
            self._base.execute("delete from pin where cid = ?", (cid,))
            self._base.execute("delete from object where cid = ?", (cid,))

    def idle(self, limit: int) -> list[StoredObject]:
        """Returns unpinned objects, least recently used first."""
        query = "select cid, size, stored from object where pins = 0 order by used_at, cid limit ?"
        with self._transaction():
            self._delete_expired_pins()
            return [StoredObject(*row) for row in self._base.execute(query, (limit,))]

    # ----------------------------------------------------------------------------------------- pins

    def pin(self, cid: str, owner: Owner, until: float | None, owner_quota: int) -> bool:
        """Pins the object or extends its pin, and never shortens one. Returns False if the owner's
        quota would be exceeded.
        """
        end = FOREVER if until is None else until
        query = (
            "insert into pin values(?, ?, ?, ?) on conflict(cid, owner) do update set until = "
            "max(until, excluded.until)"
        )
        with self._transaction():
            self._delete_expired_pins()
            row = self._base.execute("select stored from object where cid = ?", (cid,)).fetchone()
            held = self._base.execute(
                "select 1 from pin where cid = ? and owner = ?", (cid, owner.name)
            ).fetchone()
            # Each file also costs disk blocks and a row, so a million one-byte files count as more
            # than a megabyte.
            counted = max(OBJECT_BYTES_MIN, row[0] if row is not None else 0)
            if held is None and row is not None and self._owned(owner.name) + counted > owner_quota:
                return False
            self._base.execute(query, (cid, owner.name, end, counted))
            self._set_weight(owner.name, owner.weight)
        return True

    def unpin(self, cid: str, owner: str) -> None:
        with self._locked():
            self._base.execute("delete from pin where cid = ? and owner = ?", (cid, owner))

    def unpin_all(self, owner: str) -> None:
        with self._transaction():
            self._base.execute("delete from pin where owner = ?", (owner,))

    def owners_of(self, cid: str) -> list[str]:
        query = "select owner from pin where cid = ? and until > ?"
        return [str(owner) for (owner,) in self._rows(query, cid, self._now())]

    def is_pinned(self, cid: str) -> bool:
        query = "select 1 from pin where cid = ? and until > ? limit 1"
        return bool(self._rows(query, cid, self._now()))

    def is_pinned_for(self, cid: str, owner: str) -> bool:
        query = "select 1 from pin where cid = ? and owner = ? and until > ?"
        return bool(self._rows(query, cid, owner, self._now()))

    def extend_pins(self, named: Sequence[tuple[bytes, str]], until: float) -> None:
        query = (
            "update pin set until = max(until, ?) where owner = ? and cid in (select cid from "
            "object where digest = ?)"
        )
        with self._transaction():
            self._base.executemany(query, [(until, owner, digest) for digest, owner in named])

    def transfer_pins(self, moves: Sequence[PinTransfer]) -> list[bytes]:
        """Moves pins to other owners, all or none, whatever their quotas. Returns the digests of
        objects that are not stored.
        """
        query = (
            "insert into pin values(?, ?, ?, ?) on conflict(cid, owner) do update set until = "
            "max(until, excluded.until)"
        )
        lost = []
        with self._transaction():
            for move in moves:
                row = self._base.execute(
                    "select cid, stored from object where digest = ?", (move.digest,)
                ).fetchone()
                if row is None:
                    lost.append(move.digest)
                    continue
                self._base.execute(
                    query, (row[0], move.taker.name, move.until, max(OBJECT_BYTES_MIN, row[1]))
                )
                self._base.execute(
                    "delete from pin where cid = ? and owner = ?", (row[0], move.giver)
                )
                self._set_weight(move.taker.name, move.taker.weight)
        return lost

    def reclaim_pins(
        self, asker: Owner, wanted: int, room: int, protects: Callable[[str], PinNeed]
    ) -> int:
        """Ends pins of other owners to make room for `asker`. Returns the bytes that lost their
        pin.

        A pin keeps content for one owner. An owner's weight is the money that its bytes are
        measured by. Only owners with more bytes for each unit of weight than `asker` lose pins. The
        owner with most for its weight comes first, and its oldest pins first.

        An owner's share is the part of `room` (bytes of the store) that its weight has in all
        weights. Content in use loses its pin only if its owner holds more than its share. So small
        accounts cannot lock content that everybody needs, and an owner within its share keeps what
        it uses. Content that a CommitReceipt has promised to keep never loses its pin.
        """
        taken = 0
        with self._transaction():
            self._delete_expired_pins()
            mine, own = self._owned(asker.name) + wanted, _bounded(asker.weight)
            others = (
                "select name, bytes, weight from owner where name != ? order by cast(bytes "
                "as real) / weight desc limit ?"
            )
            rows = self._base.execute(others, (asker.name, OWNERS_LOOKED_AT)).fetchall()
            all_others = "select coalesce(sum(weight), 0) from owner where name != ?"
            weights = own + int(self._base.execute(all_others, (asker.name,)).fetchone()[0])
            for name, held, weight in rows:
                for cid, counted in self._pins_of(name):
                    if taken >= wanted or held * own <= mine * weight:
                        break
                    need = protects(cid)
                    if need is PinNeed.PROMISED or (
                        need is PinNeed.USED and held * weights <= room * weight
                    ):
                        continue
                    self._base.execute("delete from pin where cid = ? and owner = ?", (cid, name))
                    taken, held = taken + counted, held - counted
                if taken >= wanted:
                    break
        return taken

    def _pins_of(self, owner: str) -> list[tuple[str, int]]:
        return self._base.execute(
            "select cid, counted from pin where owner = ? order by until limit ?",
            (owner, PINS_LOOKED_AT),
        ).fetchall()

    def _delete_expired_pins(self) -> None:
        self._base.execute("delete from pin where until <= ?", (self._now(),))

    # --------------------------------------------------------------------------------- reservations

    def used(self) -> int:
        with self._locked():
            return self._used()

    def reserve(
        self, work: str, owner: Owner, size: int, quota: int, owner_quota: int
    ) -> int | None:
        """Reserves `size` bytes in total for one piece of work. Returns 0 when done, the number of
        bytes that the store lacks, or None if the owner's quota would be exceeded.
        """
        query = (
            "insert into reservation values(?, ?, ?) on conflict(id) do update set bytes = "
            "excluded.bytes"
        )
        with self._transaction():
            self._delete_expired_pins()
            held = self._base.execute(
                "select owner, bytes from reservation where id = ?", (work,)
            ).fetchone()
            before = held[1] if held is not None else 0
            if (
                self._owned(owner.name)
                - (before if held is not None and held[0] == owner.name else 0)
                + size
                > owner_quota
            ):
                return None
            missing = self._used() - int(before) + size - quota
            if missing > 0:
                return missing
            if held is not None and held[0] != owner.name:
                self._base.execute(
                    "delete from reservation where id = ?", (work,)
                )  # another owner's interrupted work left it
            self._base.execute(query, (work, owner.name, size))
            self._set_weight(owner.name, owner.weight)
        return 0

    def release(self, work: str) -> None:
        with self._locked():
            self._base.execute("delete from reservation where id = ?", (work,))

    def reservations(self) -> list[str]:
        return [str(name) for (name,) in self._rows("select id from reservation")]

    # --------------------------------------------------------------------------------------- owners

    def owned(self) -> dict[str, int]:
        with self._transaction():
            self._delete_expired_pins()
            return {
                str(name): int(held)
                for name, held in self._base.execute("select name, bytes from owner")
            }

    def set_weights(self, weights: Mapping[str, int]) -> None:
        with self._transaction():
            for name, weight in weights.items():
                self._set_weight(name, weight)

    def _set_weight(self, name: str, weight: int) -> None:
        self._base.execute("update owner set weight = ? where name = ?", (_bounded(weight), name))

    def _used(self) -> int:
        return int(self._base.execute("select bytes from total").fetchone()[0])

    def _owned(self, owner: str) -> int:
        row = self._base.execute("select bytes from owner where name = ?", (owner,)).fetchone()
        return 0 if row is None else int(row[0])

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._locked():
            return self._base.execute(query, values).fetchall()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one thread at a time. Raises `Unavailable` if the database fails: a full disk, or
        a long lock by another process.
        """
        with self._guard:
            try:
                yield
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"the store's index cannot be used: {error}", RETRY_SECONDS
                ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._locked():
            try:
                self._base.execute("begin immediate")
                yield
                self._base.execute("commit")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("rollback")
                raise


def _bounded(weight: int) -> int:
    return max(1, min(weight, WEIGHT_MAX))
