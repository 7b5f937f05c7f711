"""The store's index in SQLite: objects with their last use, pins with owner and end,
reservations of work in progress, sums of each owner.

The files decide what exists; the index can be rebuilt from them but for pins. Calls block and
are safe from any thread. Sums are kept by triggers, so that no statement can forget them, and
made anew whenever the index is opened.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.sqlite.durable import SMALL_CACHE

OBJECT_BYTES_MIN = 64 * 1024  # what an object counts as at least against its owner's quota
FOREVER = 1 << 62
VERSION = 2
WEIGHT_MAX = 1 << 40
OWNERS_LOOKED_AT = 4096
PINS_LOOKED_AT = 65_536
RETRY_SECONDS = 10.0

SCHEMA = """
begin immediate;
create table if not exists object(cid text primary key, digest blob not null, size integer not null, stored integer not null,
  used_at real not null, pins integer not null default 0) without rowid;
create index if not exists object_digest on object(digest);
create index if not exists object_idle on object(used_at, cid) where pins = 0;
create table if not exists pin(cid text, owner text, until real not null, counted integer not null default 0,
  primary key(cid, owner)) without rowid;
drop index if exists pin_owner;
create index if not exists pin_by_owner on pin(owner, until);
create index if not exists pin_by_end on pin(until);
create table if not exists reservation(id text primary key, owner text not null, bytes integer not null) without rowid;
create table if not exists owner(name text primary key, bytes integer not null, weight integer not null default 1) without rowid;
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
  insert into owner(name, bytes) values(new.owner, new.counted) on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists pin_goes after delete on pin begin
  update object set pins = pins - 1 where cid = old.cid;
  update owner set bytes = bytes - old.counted where name = old.owner; end;
create trigger if not exists reservation_comes after insert on reservation begin
  update total set bytes = bytes + new.bytes;
  insert into owner(name, bytes) values(new.owner, new.bytes) on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists reservation_goes after delete on reservation begin
  update total set bytes = bytes - old.bytes;
  update owner set bytes = bytes - old.bytes where name = old.owner; end;
create trigger if not exists reservation_moves after update of bytes on reservation begin
  update total set bytes = bytes + new.bytes - old.bytes;
  insert into owner(name, bytes) values(new.owner, new.bytes - old.bytes)
    on conflict(name) do update set bytes = bytes + excluded.bytes; end;
create trigger if not exists owner_has_nothing after update of bytes on owner when new.bytes = 0 begin
  delete from owner where name = new.name; end;
pragma user_version = 2;
commit;
"""

REBUILD = f"""
begin immediate;
delete from owner where name not in (select owner from pin union select owner from reservation);
update pin set counted = max({OBJECT_BYTES_MIN}, coalesce((select stored from object where object.cid = pin.cid), 0)) where counted = 0;
insert into owner(name, bytes) select name, sum(bytes) from (
    select owner as name, counted as bytes from pin union all select owner as name, bytes from reservation
  ) where true group by name on conflict(name) do update set bytes = excluded.bytes;
update total set bytes = (select coalesce(sum(stored), 0) from object) + (select coalesce(sum(bytes), 0) from reservation);
update object set pins = (select count(*) from pin where pin.cid = object.cid)
  where pins != (select count(*) from pin where pin.cid = object.cid);
commit;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. `size`: bytes of its files; `stored`: with its nodes, what counts against
    quotas.
    """

    cid: str
    size: int
    stored: int


class Need(Enum):
    """Who needs stored content: nobody, its owner, or somebody else to whom the store has
    promised it.
    """

    NONE = 0
    USED = 1
    PROMISED = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """On whose account something is kept. `quota_bytes`: None = the store's own for every owner.
    `weight`: who holds most for its weight yields first where owners yield to each other.
    `remedy`: what a refused one can do.
    """

    name: str
    quota_bytes: int | None = None
    weight: int = 1
    remedy: str = "unpin something"


@dataclass(frozen=True, slots=True)
class Move:
    """The object with this digest is no longer kept for `giver` but for `taker`, until then."""

    digest: bytes
    giver: str
    taker: Owner
    until: float


def owner_of(owner: str | Owner) -> Owner:
    """A name alone has the store's own quota and weighs 1."""
    return owner if isinstance(owner, Owner) else Owner(owner)


class Index:
    """One database file, shared by all processes that use the store."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._now = now
        self._guard = threading.Lock()
        self._base = sqlite3.connect(
            path, timeout=30.0, isolation_level=None, check_same_thread=False
        )
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("pragma synchronous=normal")
        self._base.execute(SMALL_CACHE)
        self._migrate()
        self._base.executescript(SCHEMA)
        self._base.executescript(REBUILD)

    def close(self) -> None:
        """Closes the database."""
        with self._guard:
            self._base.close()

    # -------------------------------------------------------------------------------------- objects

    def find(self, cid: str) -> Entry | None:
        """The object's row."""
        with self._told():
            row = self._base.execute(
                "select cid, size, stored from object where cid = ?", (cid,)
            ).fetchone()
        return None if row is None else Entry(*row)

    def find_digest(self, digest: bytes) -> str | None:
        """CID text of an object whose root block has this sha2-256."""
        with self._told():
            row = self._base.execute(
                "select cid from object where digest = ?", (digest,)
            ).fetchone()
        return None if row is None else str(row[0])

    def all_cids(self) -> list[str]:
        """Every object."""
        with self._told():
            return [str(row[0]) for row in self._base.execute("select cid from object")]

    def touch(self, cid: str) -> None:
        """Notes a use."""
        with self._told():
            self._base.execute("update object set used_at = ? where cid = ?", (self._now(), cid))

    def add(self, cid: str, digest: bytes, size: int, stored: int, reservation: str) -> None:
        """A published object takes the place of its reservation."""
        query = """insert into object select ?, ?, ?, ?, ?, count(*) from pin where cid = ?
                   on conflict(cid) do update set size = excluded.size, stored = excluded.stored, used_at = excluded.used_at"""
        with self._transaction():
            self._base.execute(query, (cid, digest, size, stored, self._now(), cid))
            self._base.execute("delete from reservation where id = ?", (reservation,))

    def forget(self, cid: str) -> None:
        """The object is gone; so are its pins."""
        with self._transaction():
            self._base.execute("delete from pin where cid = ?", (cid,))
            self._base.execute("delete from object where cid = ?", (cid,))

    def idle(self, limit: int) -> list[Entry]:
        """Unpinned objects, least recently used first."""
        query = "select cid, size, stored from object where pins = 0 order by used_at, cid limit ?"
        with self._transaction():
            self._end_pins()
            return [Entry(*row) for row in self._base.execute(query, (limit,))]

    # ----------------------------------------------------------------------------------------- pins

    def pin(self, cid: str, owner: Owner, until: float | None, owner_quota: int) -> bool:
        """Pins, or prolongs; False when the owner's quota would be passed. Never shortens."""
        end = FOREVER if until is None else until
        query = (
            "insert into pin values(?, ?, ?, ?) on conflict(cid, owner) do update set until = "
            "max(until, excluded.until)"
        )
        with self._transaction():
            self._end_pins()
            row = self._base.execute("select stored from object where cid = ?", (cid,)).fetchone()
            held = self._base.execute(
                "select 1 from pin where cid = ? and owner = ?", (cid, owner.name)
            ).fetchone()
            # A file costs its blocks on the disk and a row: a million files of one byte are not a
            # megabyte.
            counted = max(OBJECT_BYTES_MIN, row[0] if row is not None else 0)
            if held is None and row is not None and self._owned(owner.name) + counted > owner_quota:
                return False
            self._base.execute(query, (cid, owner.name, end, counted))
            self._weigh(owner.name, owner.weight)
        return True

    def unpin(self, cid: str, owner: str) -> None:
        """Removes one owner's pin; others' stay."""
        with self._told():
            self._base.execute("delete from pin where cid = ? and owner = ?", (cid, owner))

    def unpin_all(self, owner: str) -> None:
        """Removes all pins of one owner."""
        with self._transaction():
            self._base.execute("delete from pin where owner = ?", (owner,))

    def is_pinned(self, cid: str) -> bool:
        """Whether any pin is live."""
        with self._told():
            return (
                self._base.execute(
                    "select 1 from pin where cid = ? and until > ?", (cid, self._now())
                ).fetchone()
                is not None
            )

    def prolong(self, named: Sequence[tuple[bytes, str]], until: float) -> None:
        """Pins of these (digest, owner) last at least until then, where there are any."""
        query = (
            "update pin set until = max(until, ?) where owner = ? and cid in (select cid from "
            "object where digest = ?)"
        )
        with self._transaction():
            self._base.executemany(query, [(until, owner, digest) for digest, owner in named])

    def hand_over(self, moves: Sequence[Move]) -> list[bytes]:
        """Pins change hands, all or none, whatever the takers' quotas; digests of what is not
        here.
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
                self._weigh(move.taker.name, move.taker.weight)
        return lost

    def take_back(
        self, asker: Owner, wanted: int, room: int, protects: Callable[[str], Need]
    ) -> int:
        """Ends pins of owners who hold more for their weight than `asker`, the heaviest first,
        their oldest first; bytes unpinned.

        What is in use yields only if its owner holds more than its share of `room` by weight:
        somebody's dust must not lock what everybody needs, and nobody within its share loses
        what it is using. What was promised never yields.
        """
        taken = 0
        with self._transaction():
            self._end_pins()
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
                    if need is Need.PROMISED or (
                        need is Need.USED and held * weights <= room * weight
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

    def _end_pins(self) -> None:
        self._base.execute("delete from pin where until <= ?", (self._now(),))

    # --------------------------------------------------------------------------------- reservations

    def used(self) -> int:
        """Bytes of all objects and reservations."""
        with self._told():
            return self._used()

    def reserve(
        self, work: str, owner: Owner, size: int, quota: int, owner_quota: int
    ) -> int | None:
        """Books `size` bytes in total for one piece of work: 0 when done, the bytes missing in
        the store, None past the owner's quota.
        """
        query = (
            "insert into reservation values(?, ?, ?) on conflict(id) do update set bytes = "
            "excluded.bytes"
        )
        with self._transaction():
            self._end_pins()
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
                )  # somebody else left it behind
            self._base.execute(query, (work, owner.name, size))
            self._weigh(owner.name, owner.weight)
        return 0

    def release(self, work: str) -> None:
        """Ends a reservation."""
        with self._told():
            self._base.execute("delete from reservation where id = ?", (work,))

    def reservations(self) -> list[str]:
        """Ids of all work in progress or left behind."""
        with self._told():
            return [str(row[0]) for row in self._base.execute("select id from reservation")]

    # --------------------------------------------------------------------------------------- owners

    def owned(self) -> dict[str, int]:
        """Bytes that each owner has pinned or reserved."""
        with self._transaction():
            self._end_pins()
            return {
                str(name): int(held)
                for name, held in self._base.execute("select name, bytes from owner")
            }

    def weigh(self, weights: Mapping[str, int]) -> None:
        """New weights of owners who hold something."""
        with self._transaction():
            for name, weight in weights.items():
                self._weigh(name, weight)

    def _weigh(self, name: str, weight: int) -> None:
        self._base.execute("update owner set weight = ? where name = ?", (_bounded(weight), name))

    def _used(self) -> int:
        return int(self._base.execute("select bytes from total").fetchone()[0])

    def _owned(self, owner: str) -> int:
        row = self._base.execute("select bytes from owner where name = ?", (owner,)).fetchone()
        return 0 if row is None else int(row[0])

    def _migrate(self) -> None:
        """A file of version 1 has neither sums nor what a pin counts as."""
        with self._transaction():
            is_old = self._base.execute("pragma user_version").fetchone()[0] < VERSION
            if (
                is_old
                and self._base.execute(
                    "select 1 from sqlite_master where name = 'object'"
                ).fetchone()
                is not None
            ):
                self._base.execute("alter table object add column pins integer not null default 0")
                self._base.execute("alter table pin add column counted integer not null default 0")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """One thread at a time; Unavailable where the database fails: a full disk, or held too
        long by another process.
        """
        with self._guard:
            try:
                yield
            except sqlite3.OperationalError as error:
                raise Unavailable(f"the store's index: {error}", RETRY_SECONDS) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told():
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
