"""The store's folders on disk. An object appears whole and verified, or not at all. Calls block.

    objects/<xx>/<cid>   the object: a file (0444) or a directory tree (0444 and 0555)
    nodes/<xx>/<cid>     its dag-pb nodes
    tmp/<work>/          tree and nodes of work in progress; a fetch uses its CID as name
    locks/<cid>          shared while in use, exclusive while made or removed
    index.sqlite
    blocks.sqlite        in which object an inner block is

A file is published by rename after fsync, nodes first. So everything in `objects` is complete, even
after kill -9. Fetches in `tmp` survive kill -9 and are resumed.

Paths here are strings: `Path` interns each part of a name, so names used once per object would make
the interpreter's table of names grow.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from quorate_content.dag.cid import Cid, parse
from quorate_content.dag.content_limits import Bounds, DiskFull, StoreFull
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
from quorate_content.store.block_index import BlockIndex
from quorate_content.store.index import Index, Owner, PinNeed, StoredObject
from quorate_content.store.locks import FileLock, try_lock
from quorate_protocol.refusals import Code, Refused

EVICT_BATCH = 256
ROOM_TRIES = 64
PUT_PREFIX = "put-"
NODES_HELD_BYTES = 64 << 20
NODE_BYTES = 256  # of one node in memory beside its block


class StoreFiles:
    """The objects on disk and their index."""

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        owner_quota_bytes: int,
        spare_bytes: int,
        now: Callable[[], float] = time.time,
        protects: Callable[[str], PinNeed] | None = None,
    ) -> None:
        self.root = root
        self._text = str(root)
        self._quota, self._owner_quota, self._spare = quota_bytes, owner_quota_bytes, spare_bytes
        self._protects = protects
        self._nodes = NodeCache()
        for name in ("objects", "nodes", "tmp", "locks"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.index = Index(root / "index.sqlite", now)
        self.blocks = BlockIndex(root / "blocks.sqlite")
        self._recover()

    def place(self, cid: Cid) -> str:
        return self._place_in("objects", cid)

    def nodes(self, cid: Cid) -> Nodes:
        return self._nodes.get(cid, lambda: load_nodes(self._place_in("nodes", cid), Bounds()))

    def work(self, name: str) -> str:
        place = f"{self._text}/tmp/{name}"
        with suppress(FileExistsError):
            os.mkdir(place)
        return place

    def has(self, cid: Cid) -> bool:
        return _exists(self.place(cid))

    def try_lock(self, name: str, is_shared: bool) -> FileLock | None:
        return try_lock(f"{self._text}/locks/{name}", is_shared)

    def reserve(self, work: str, owner: Owner, size: int, written: int = 0) -> None:
        """Reserves `size` bytes in total, of which the disk holds `written` already. Evicts idle
        objects first, then pins of owners that hold too much for their weight.

        Raises `Refused(QUOTA)` beyond the owner's quota, `StoreFull` if nothing can be evicted,
        `DiskFull` if the disk is full.
        """
        for _ in range(ROOM_TRIES):
            missing = self.index.reserve(work, owner, size, self._quota, self._quota_of(owner))
            if missing is None:
                raise self._over(owner, f"{size} bytes are")
            if missing == 0 and (lacking := self._disk_shortage(size - written)) <= 0:
                return
            if missing == 0:
                if self.evict(lacking) == 0:
                    raise DiskFull(
                        f"{size} bytes and a reserve of {self._spare} are needed on the disk of "
                        f"{self.root}"
                    )
                continue
            if size > self._quota or (
                self.evict(missing) == 0 and not self._reclaim(owner, missing)
            ):
                break
        raise StoreFull(
            f"{size} bytes do not fit: the store holds at most {self._quota}, and the rest is "
            f"pinned or in use; {owner.remedy}"
        )

    def _reclaim(self, owner: Owner, wanted: int) -> bool:
        return (
            self._protects is not None
            and self.index.reclaim_pins(owner, wanted, self._quota, self._protects) > 0
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

    def publish(self, cid: Cid, work: str, nodes: Nodes, size: int, disk_bytes: int) -> None:
        """Makes the finished `tmp/<work>/tree` the object, which takes `disk_bytes` bytes of disk.
        The caller holds the CID's exclusive lock.
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
        self._nodes.forget(cid)
        self.blocks.add(cid, nodes)
        self.index.add(str(cid.as_v1()), cid.digest, size, disk_bytes + len(raw), work)
        self.discard(work)

    def discard(self, work: str) -> None:
        remove_tree_in(f"{self._text}/tmp", work)
        self.index.release(work)

    def pin(self, cid: Cid, owner: Owner, until: float | None) -> None:
        if not self.index.pin(str(cid.as_v1()), owner, until, self._quota_of(owner)):
            raise self._over(owner, f"{cid} is")

    def entry(self, cid: Cid) -> StoredObject | None:
        name = str(cid.as_v1())
        entry = self.index.find(name)
        if entry is None or not self.has(cid):
            return None
        self.index.touch(name)
        return entry

    def evict(self, wanted: int) -> int:
        """Frees about `wanted` bytes: abandoned work first, then idle objects, oldest first.
        Returns the bytes freed.
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
        # Nodes are removed first. If a kill leaves half a tree, it has no nodes and is not taken
        # for a whole object.
        with suppress(FileNotFoundError):
            os.unlink(self._place_in("nodes", cid))
        self.index.forget(str(cid.as_v1()))
        self.blocks.forget(cid)
        remove_tree(self.place(cid))

    def _recover(self) -> None:
        """Makes index and files agree after a kill. Forgets rows without objects, adds objects
        without rows, and drops abandoned work.
        """
        for name in self.index.all_cids():
            if not self.has(parse(name)) or not _exists(self._place_in("nodes", parse(name))):
                self.index.forget(name)
        known = set(self.index.all_cids())
        for path in (self.root / "objects").glob("*/*"):
            if path.name not in known:
                self._index_if_idle(parse(path.name))
        for name in self.blocks.lacking(self.index.all_cids()):
            self.blocks.add(parse(name), self.nodes(parse(name)))
        for folder in list((self.root / "tmp").iterdir()):
            if folder.name.startswith(PUT_PREFIX):
                self._discard_if_idle(folder.name)
        for work in self.index.reservations():
            if not (self.root / "tmp" / work).exists():
                self._discard_if_idle(work)

    def index_unlisted_object(self, cid: Cid) -> None:
        """Adds an object that the index lacks, or removes the remains of an interrupted eviction.
        The caller holds the exclusive lock.
        """
        path, nodes = Path(self.place(cid)), Path(self._place_in("nodes", cid))
        name = str(cid.as_v1())
        if self.index.find(name) is not None:
            return
        if nodes.exists():  # nodes are published before the object and removed before it
            size, disk_bytes = _tree_bytes(path)
            self.index.add(name, cid.digest, size, disk_bytes + nodes.stat().st_size, name)
        else:
            remove_tree(path)

    def _index_if_idle(self, cid: Cid) -> None:
        lock = self.try_lock(str(cid), is_shared=False)
        if lock is not None:  # otherwise its maker is alive and about to add it
            try:
                self.index_unlisted_object(cid)
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
        """Returns how many bytes could be added and kept now. Content with several owners counts
        for each, so the result is rather too low.
        """
        kept, disk = sum(self.index.owned().values()), os.statvfs(self.root)
        idle = max(0, self.index.used() - kept)
        return max(0, min(self._quota - kept, disk.f_bavail * disk.f_frsize + idle - self._spare))

    def _disk_shortage(self, size: int) -> int:
        """Returns how many bytes the disk lacks; not positive if there is room."""
        found = os.statvfs(self.root)
        return size + self._spare - found.f_bavail * found.f_frsize

    def _place_in(self, folder: str, cid: Cid) -> str:
        return f"{self._text}/{folder}/{cid.digest.hex()[:2]}/{cid.as_v1()}"


class NodeCache:
    """The verified nodes of objects that were read last. Safe from any thread. Readers ask for a
    directory block by block. To read and hash all its nodes for each of them took most of the time.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: OrderedDict[Cid, Nodes] = OrderedDict()
        self._bytes = 0

    def get(self, cid: Cid, load: Callable[[], Nodes]) -> Nodes:
        """Returns the nodes of an object, which `load` reads if they are not held."""
        with self._guard:
            if (nodes := self._held.get(cid)) is not None:
                self._held.move_to_end(cid)
                return nodes
        nodes = load()
        with self._guard:
            if cid not in self._held:
                self._held[cid] = nodes
                self._bytes += _bytes_of(nodes)
            while self._bytes > NODES_HELD_BYTES:
                self._bytes -= _bytes_of(self._held.popitem(last=False)[1])
        return nodes

    def forget(self, cid: Cid) -> None:
        """Drops the nodes of an object: what was read before it was stored may be incomplete."""
        with self._guard:
            if (nodes := self._held.pop(cid, None)) is not None:
                self._bytes -= _bytes_of(nodes)


def _bytes_of(nodes: Nodes) -> int:
    return sum(NODE_BYTES + len(block) for block in nodes.values()) + NODE_BYTES


def _exists(place: str) -> bool:
    """Returns whether a path exists. Raises OSError if that cannot be known, because unreadable is
    not the same as gone.
    """
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove_tree_in(folder: str, name: str) -> None:
    """Removes `folder/name`; `name` must be one plain name. Absent is fine."""
    assert name and "/" not in name and name not in (".", "..")
    remove_tree(f"{folder}/{name}")


def _tree_bytes(path: Path) -> tuple[int, int]:
    """Returns (bytes of its files, bytes that it counts as on disk)."""
    if path.is_file():
        return path.stat().st_size, path.stat().st_size
    sizes = [found.stat().st_size if found.is_file() else 0 for found in path.rglob("*")]
    return sum(sizes), sum(entry_bytes(True, size) for size in sizes)
