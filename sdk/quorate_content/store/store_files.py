"""The store's folders, and how something appears in them and goes: whole and verified, or not at
all. Calls block.

    objects/<xx>/<cid>   the object: a file (0444) or a directory tree (0444 and 0555)
    nodes/<xx>/<cid>     its dag-pb nodes
    tmp/<work>/          tree and nodes of work in progress; those of a fetch are named by CID and outlive a kill -9
    locks/<cid>          shared while in use, exclusive while made or removed
    index.sqlite

A file is published by rename after fsync, nodes first; so whatever is in `objects` is complete,
at any kill -9.

Paths in here are strings: a `Path` puts each of its parts into the interpreter's table of names,
which a name that comes once for every object makes larger, and then anew with twice the room.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from quorate_content.content_limits import Bounds, DiskFull, StoreFull
from quorate_content.dag.cid import Cid, parse
from quorate_content.dag.disk_tree import (
    DIRECTORY_MODE,
    Nodes,
    dump_nodes,
    entry_bytes,
    load_nodes,
    remove_tree,
    sync_directory,
    sync_tree,
)
from quorate_content.store.index import Entry, Index, Need, Owner
from quorate_content.store.locks import FileLock, try_lock
from quorate_protocol.refusals import Code, Refused

EVICT_BATCH = 256
ROOM_TRIES = 64
PUT_PREFIX = "put-"


class StoreFiles:
    """Objects on the disk and their index."""

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        owner_quota_bytes: int,
        spare_bytes: int,
        now: Callable[[], float] = time.time,
        protects: Callable[[str], Need] | None = None,
    ) -> None:
        self.root = root
        self._text = str(root)
        self._quota, self._owner_quota, self._spare = quota_bytes, owner_quota_bytes, spare_bytes
        self._protects = protects
        for name in ("objects", "nodes", "tmp", "locks"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.index = Index(root / "index.sqlite", now)
        self._recover()

    def place(self, cid: Cid) -> str:
        """Where the object is or would be."""
        return self._place_in("objects", cid)

    def nodes(self, cid: Cid) -> Nodes:
        """The object's dag-pb nodes, by digest."""
        return load_nodes(self._place_in("nodes", cid), Bounds())

    def work(self, name: str) -> str:
        """Folder of one piece of work; made when absent."""
        place = f"{self._text}/tmp/{name}"
        with suppress(FileExistsError):
            os.mkdir(place)
        return place

    def has(self, cid: Cid) -> bool:
        """Whether the object is there; a row without its file is put right."""
        return _is_there(self.place(cid))

    def try_lock(self, name: str, is_shared: bool) -> FileLock | None:
        """The lock of a CID or a piece of work, or None when held."""
        return try_lock(f"{self._text}/locks/{name}", is_shared)

    def reserve(self, work: str, owner: Owner, size: int) -> None:
        """Books `size` bytes in total, evicting what nobody needs, then what others hold beyond
        their weight.

        `Refused(QUOTA)` past the owner's quota; `StoreFull` when nothing yields; `DiskFull` when
        the disk itself is.
        """
        for _ in range(ROOM_TRIES):
            missing = self.index.reserve(work, owner, size, self._quota, self._quota_of(owner))
            if missing is None:
                raise self._over(owner, f"{size} bytes are")
            if missing == 0:
                self._check_disk(size)
                return
            if size > self._quota or (
                self.evict(missing) == 0 and not self._take_back(owner, missing)
            ):
                break
        raise StoreFull(
            f"{size} bytes do not fit: the store has {self._quota} and the rest is pinned or in "
            f"use; {owner.remedy}"
        )

    def _take_back(self, owner: Owner, wanted: int) -> bool:
        return (
            self._protects is not None
            and self.index.take_back(owner, wanted, self._quota, self._protects) > 0
        )

    def _quota_of(self, owner: Owner) -> int:
        return self._owner_quota if owner.quota_bytes is None else owner.quota_bytes

    def _over(self, owner: Owner, what: str) -> Refused:
        return Refused(
            Code.QUOTA,
            (
                f"{what} more than {owner.name} may keep here ({self._quota_of(owner)} bytes); "
                f"{owner.remedy}"
            ),
        )

    def publish(self, cid: Cid, work: str, nodes: Nodes, size: int, booked: int) -> None:
        """Makes the finished `tmp/<work>/tree` the object; `booked` bytes of the disk. The
        caller holds the CID's exclusive lock.
        """
        folder, target = self.work(work), self.place(cid)
        raw = dump_nodes(nodes)
        with open(f"{folder}/nodes", "wb") as file:
            file.write(raw)
        sync_tree(f"{folder}/nodes")
        sync_tree(f"{folder}/tree")
        for source, place in (
            (f"{folder}/nodes", self._place_in("nodes", cid)),
            (f"{folder}/tree", target),
        ):
            shard = os.path.dirname(place)
            with suppress(FileExistsError):
                os.mkdir(shard)
            os.rename(source, place)
            sync_directory(shard)
        if os.path.isdir(target):
            os.chmod(target, DIRECTORY_MODE)
        self.index.add(str(cid.as_v1()), cid.digest, size, booked + len(raw), work)
        self.discard(work)

    def discard(self, work: str) -> None:
        """Removes a piece of work and its reservation."""
        remove_tree_in(f"{self._text}/tmp", work)
        self.index.release(work)

    def pin(self, cid: Cid, owner: Owner, until: float | None) -> None:
        """Keeps the object for `owner`; the caller holds a lock of the CID. `Refused(QUOTA)`."""
        if not self.index.pin(str(cid.as_v1()), owner, until, self._quota_of(owner)):
            raise self._over(owner, f"{cid} is")

    def entry(self, cid: Cid) -> Entry | None:
        """The object's row, if the object is there; notes the use."""
        name = str(cid.as_v1())
        entry = self.index.find(name)
        if entry is None or not self.has(cid):
            return None
        self.index.touch(name)
        return entry

    def evict(self, wanted: int) -> int:
        """Frees about `wanted` bytes: parts left behind, then idle objects, oldest first. How
        much it freed.
        """
        freed = self._evict_parts()
        for entry in self.index.idle(EVICT_BATCH):
            if freed >= wanted:
                break
            lock = self.try_lock(entry.cid, is_shared=False)
            if lock is None:
                continue
            try:
                if not self.index.is_pinned(entry.cid):
                    self._remove(parse(entry.cid))
                    freed += entry.stored
            finally:
                lock.release()
        return freed

    def _evict_parts(self) -> int:
        before = self.index.used()
        for work in self.index.reservations():
            lock = self.try_lock(work, is_shared=False)
            if lock is not None:
                try:
                    self.discard(work)
                finally:
                    lock.release()
        return max(0, before - self.index.used())

    def _remove(self, cid: Cid) -> None:
        # Nodes go first: a tree that a kill left half removed has none, and is not taken for a
        # whole one.
        with suppress(FileNotFoundError):
            os.unlink(self._place_in("nodes", cid))
        self.index.forget(str(cid.as_v1()))
        remove_tree(self.place(cid))

    def _recover(self) -> None:
        """Puts index and files in step after a kill: forgets rows without objects, adopts
        objects, drops abandoned puts.
        """
        for name in self.index.all_cids():
            if not self.has(parse(name)) or not _is_there(self._place_in("nodes", parse(name))):
                self.index.forget(name)
        known = set(self.index.all_cids())
        for path in (self.root / "objects").glob("*/*"):
            if path.name not in known:
                self._adopt_if_idle(parse(path.name))
        for folder in list((self.root / "tmp").iterdir()):
            if folder.name.startswith(PUT_PREFIX):
                self._discard_if_idle(folder.name)
        for work in self.index.reservations():
            if not (self.root / "tmp" / work).exists():
                self._discard_if_idle(work)

    def adopt(self, cid: Cid) -> None:
        """Enters an object that the index lost, or removes the rest of an eviction that was
        killed. The caller holds the exclusive lock.
        """
        path, nodes = Path(self.place(cid)), Path(self._place_in("nodes", cid))
        name = str(cid.as_v1())
        if self.index.find(name) is not None:
            return
        if nodes.exists():  # published before the object and removed before it
            size, booked = _tree_bytes(path)
            self.index.add(name, cid.digest, size, booked + nodes.stat().st_size, name)
        else:
            remove_tree(path)

    def _adopt_if_idle(self, cid: Cid) -> None:
        lock = self.try_lock(str(cid), is_shared=False)
        if lock is not None:  # else its maker is alive and about to enter it
            try:
                self.adopt(cid)
            finally:
                lock.release()

    def _discard_if_idle(self, work: str) -> None:
        lock = self.try_lock(work, is_shared=False)
        if lock is not None:
            try:
                self.discard(work)
            finally:
                lock.release()

    def room(self) -> int:
        """Bytes that could be brought in and kept now. What several owners keep counts for each:
        rather too little than too much.
        """
        kept, disk = sum(self.index.owned().values()), os.statvfs(self.root)
        idle = max(0, self.index.used() - kept)
        return max(0, min(self._quota - kept, disk.f_bavail * disk.f_frsize + idle - self._spare))

    def _check_disk(self, size: int) -> None:
        found = os.statvfs(self.root)
        if found.f_bavail * found.f_frsize < size + self._spare:
            raise DiskFull(f"{size} bytes and {self._spare} spare are needed below {self.root}")

    def _place_in(self, folder: str, cid: Cid) -> str:
        return f"{self._text}/{folder}/{cid.digest.hex()[:2]}/{cid.as_v1()}"


def _is_there(place: str) -> bool:
    """OSError when it cannot be known: what a disk does not show today is not gone."""
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError):  # not re-raised: it is the answer
        return False
    return True


def remove_tree_in(folder: str, name: str) -> None:
    """Removes `folder/name`, of which the name must be a plain one; absent is fine."""
    assert name and "/" not in name and name not in (".", "..")
    remove_tree(f"{folder}/{name}")


def _tree_bytes(path: Path) -> tuple[int, int]:
    """(bytes of its files, bytes that it counts as on the disk)."""
    if path.is_file():
        return path.stat().st_size, path.stat().st_size
    sizes = [found.stat().st_size if found.is_file() else 0 for found in path.rglob("*")]
    return sum(sizes), sum(entry_bytes(True, size) for size in sizes)
