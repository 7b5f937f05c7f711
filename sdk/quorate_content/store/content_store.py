"""The content store: verified files and directories by CID, with leases, pins, quotas and eviction.

The API is async; all work runs in threads.

    async with await store.get(cid, sources, bytes_max, deadline_seconds, owner) as lease:
        ... lease.path is a verified, read-only file or directory while the lease is held ...

Several processes may share one store. The first process that needs a CID fetches it, and the others
wait for it.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quorate_content.dag.car import Progress, write_car
from quorate_content.dag.cid import Cid, Codec, parse
from quorate_content.dag.content_limits import MIB, BadSource, Bounds
from quorate_content.dag.disk_tree import (
    LocalBlocks,
    Nodes,
    TreeWriter,
    dump_nodes,
    load_nodes,
    path_in_tree,
    resume_walk,
)
from quorate_content.dag.walk import DagWalk, ExpectedBlock, NullSink, Role, TreePath
from quorate_content.store.block_index import BlockPlace
from quorate_content.store.fetch import Tally, fetch
from quorate_content.store.fetch_order import Source
from quorate_content.store.index import (
    ListedObject,
    Owner,
    PinNeed,
    PinTransfer,
    StoredObject,
    owner_of,
)
from quorate_content.store.lease import Lease, Stat
from quorate_content.store.locks import FileLock
from quorate_content.store.object_builder import FinishedObject, ObjectBuilder
from quorate_content.store.store_files import PUT_PREFIX, StoreFiles
from quorate_content.store.threads import StopSignal, StreamReader, in_thread
from quorate_content.store.web_fetch import WebContent, WebFetch
from quorate_protocol.refusals import Code, Refused, Unavailable


class ObjectFetch:
    """Fetches one object into `tmp/<cid>` and continues what an earlier attempt or process left
    there. Calls block.
    """

    def __init__(
        self,
        files: StoreFiles,
        cid: Cid,
        owner: Owner,
        bounds: Bounds,
        stop: StopSignal,
        tally: Tally,
    ) -> None:
        self._files = files
        self._work = str(cid)
        self._owner = owner
        self._bounds = bounds
        self._stop = stop
        self._tally = tally

    def run(self, root: Cid, sources: tuple[Source, ...], progress: Progress | None) -> None:
        folder = Path(self._files.work(self._work))
        old_nodes = load_nodes(folder / "nodes", self._bounds)
        with open(folder / "nodes", "wb") as journal:
            journal.write(dump_nodes(old_nodes))  # drops the last entry if a kill cut it
            journal.flush()
            writer = TreeWriter(folder / "tree", self._bounds, self._reserve, resume=True)
            try:
                walk = DagWalk(root, writer, self._bounds)
                self._resume(walk, writer, old_nodes)
                writer.journal = journal
                fetch(root, sources, walk, writer, self._bounds, self._stop, progress, self._tally)
            except Refused:
                self._files.discard(self._work)
                raise
            finally:
                writer.abandon()
        self._files.publish(root, self._work, writer.nodes, walk.bytes_opened, writer.disk_bytes)

    def _resume(self, walk: DagWalk, writer: TreeWriter, nodes: Nodes) -> None:
        """Verifies what an earlier attempt left, where it lies and without a journal of its own."""
        part = LocalBlocks(writer.target, nodes)
        writer.is_replaying = True
        try:
            resume_walk(walk, part, self._stop.check)
        finally:
            part.close()
            writer.is_replaying = False

    def _reserve(self, size: int) -> None:
        self._files.reserve(self._work, self._owner, size)


def car_pieces(
    cid: Cid,
    path: Path,
    nodes: Nodes,
    from_byte: int = 0,
    only_root: bool = False,
    from_entry: TreePath = (),
) -> Iterator[bytes]:
    """Yields the object's CAR in pieces of about 1 MiB. Blocks are not hashed again, because every
    reader hashes them. `from_entry` leaves out the entries before that one, without reading them.
    """
    sought = from_entry

    def wanted(expected: ExpectedBlock) -> bool:
        nonlocal sought
        if sought and expected.role is Role.ENTRY:
            if expected.path != sought[: len(expected.path)]:
                return False
            sought = sought if len(expected.path) < len(sought) else ()
        if only_root and (expected.path or expected.role is not Role.ENTRY):
            return False
        return (
            expected.path != ()
            or expected.size is None
            or expected.offset + expected.size > from_byte
        )

    blocks = LocalBlocks(path, nodes)
    pending = bytearray()
    try:
        for piece in write_car(
            DagWalk(cid, NullSink(), Bounds()), cid, blocks.supply, wanted, trusts_supply=True
        ):
            pending += piece
            if len(pending) >= MIB:
                yield bytes(pending)
                pending.clear()
        if pending:
            yield bytes(pending)
    finally:
        blocks.close()


SOURCES_MAX = 256
OTHERS = "others"


class ByteCounts:
    """Bytes of files by source, since this object was made. Safe from any thread, and bounded."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, source: str, count: int) -> None:
        """Adds verified bytes. Sources beyond `SOURCES_MAX` are counted together as `others`."""
        with self._guard:
            if source not in self._counts and len(self._counts) >= SOURCES_MAX:
                source = OTHERS
            self._counts[source] = self._counts.get(source, 0) + count

    def total(self) -> int:
        with self._guard:
            return sum(self._counts.values())

    def by_source(self) -> dict[str, int]:
        with self._guard:
            return dict(self._counts)


THREADS = 64  # most of them wait for the network
DAY_SECONDS = 86_400.0
SPARE_BYTES = 64 * MIB
LOCK_PAUSE_SECONDS = 0.02
ENSURE_TRIES = 16


@dataclass(frozen=True, slots=True)
class Located:
    """Whether a CID is stored, and where its block is inside of stored objects."""

    is_stored: bool
    places: tuple[BlockPlace, ...]
    block: bytes | None = None


class ContentStore:
    """One folder of content.

    `quota_bytes` bounds everything, `owner_quota_bytes` what one owner pins or is fetching.
    `protects` is called in threads and says who needs a CID. With it, a full store ends pins of the
    owners that hold most for their weight. `fetched` counts the bytes that each source sent.
    """

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        owner_quota_bytes: int | None = None,
        spare_bytes: int = SPARE_BYTES,
        now: Callable[[], float] = time.time,
        protects: Callable[[str], PinNeed] | None = None,
    ) -> None:
        owner_quota = quota_bytes if owner_quota_bytes is None else owner_quota_bytes
        self._files = StoreFiles(Path(root), quota_bytes, owner_quota, spare_bytes, now, protects)
        self._quota = quota_bytes
        self.fetched = ByteCounts()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="content")

    async def close(self) -> None:
        """Waits for the threads and closes the index. All leases must have been released."""
        await asyncio.to_thread(self._threads.shutdown)
        self._files.index.close()
        self._files.blocks.close()

    # -----------------------------------------------------------------------------------------
    # adding

    async def put(
        self,
        content: Path | bytes | AsyncIterator[bytes],
        owner: str | Owner,
        until: float | None = None,
        bytes_max: int | None = None,
        deadline_seconds: float = DAY_SECONDS,
        progress: Progress | None = None,
    ) -> Stat:
        """Copies in a file, a directory, bytes or a stream, and pins it for `owner` until `until`
        (unix seconds; None: until unpinned). `progress` is told of a path's bytes, in a thread.

        Raises `Refused(QUOTA | OVERSIZE | MALFORMED)`, or `Unavailable` if the disk is full or the
        stream is too slow.
        """
        stop, work = StopSignal(deadline_seconds), PUT_PREFIX + secrets.token_hex(8)
        bounds = replace(Bounds(), bytes_max=self._quota if bytes_max is None else bytes_max)
        owner = owner_of(owner)
        job = ObjectBuilder(self._files, work, owner, bounds, stop)
        if isinstance(content, Path):
            copy = partial(job.copy, content, progress)
            return await self._bring_in(work, owner, until, stop, copy)
        stream = _once(content) if isinstance(content, bytes) else content
        reader = StreamReader(stream, asyncio.get_running_loop(), stop, bounds.bytes_max)
        return await self._bring_in(work, owner, until, stop, lambda: job.read(reader))

    async def import_car(
        self,
        stream: AsyncIterator[bytes],
        bytes_max: int,
        owner: str | Owner,
        expected_root: Cid,
        until: float | None = None,
        deadline_seconds: float = DAY_SECONDS,
    ) -> Stat:
        """Takes a whole DAG from a CAR, verifies it, and pins it as `put` does. Raises `Refused` if
        a block is missing, wrong or too large.
        """
        stop, work = StopSignal(deadline_seconds), PUT_PREFIX + secrets.token_hex(8)
        bounds = replace(Bounds(), bytes_max=bytes_max)
        owner = owner_of(owner)
        job = ObjectBuilder(self._files, work, owner, bounds, stop)
        reader = StreamReader(
            stream, asyncio.get_running_loop(), stop, 2 * bytes_max + bounds.node_bytes_max
        )
        return await self._bring_in(
            work, owner, until, stop, lambda: job.read_car(reader, expected_root)
        )

    async def get(
        self,
        cid: Cid | str,
        sources: Sequence[Source | str],
        bytes_max: int,
        deadline_seconds: float,
        owner: str | Owner,
        progress: Progress | None = None,
    ) -> Lease:
        """Returns a lease on the content. If the store does not have it, fetches it from the first
        of `sources` that has it.

        Use as `async with await ...`. `progress` is called in a thread. Raises `Refused(OVERSIZE |
        QUOTA | MALFORMED)`, or `Unavailable` if no source sent it in time. Blocks verified by then
        are kept, and the next `get` continues from there.
        """
        cid = parse(cid) if isinstance(cid, str) else cid
        stop = StopSignal(deadline_seconds)
        named = tuple(Source(source) if isinstance(source, str) else source for source in sources)
        bounds = replace(Bounds(), bytes_max=bytes_max)
        job = ObjectFetch(self._files, cid.as_v1(), owner_of(owner), bounds, stop, self.fetched.add)
        lock, entry = await self._ensure(cid, lambda: job.run(cid, named, progress), stop)
        if entry.size > bytes_max:
            lock.release()
            raise Refused(
                Code.OVERSIZE, f"{cid} has {entry.size} bytes; at most {bytes_max} are allowed"
            )
        return Lease(Stat(cid, entry.size), self._files.place(cid), lock)

    async def get_from_web(
        self,
        content: WebContent,
        origin: Source,
        gateways: Sequence[Source],
        deadline_seconds: float,
        owner: str | Owner,
    ) -> Lease:
        """Returns a lease on files that `origin` has as they are, under the CID `content.root`.
        `gateways` may have a file by its CID.

        A later call continues from the bytes that came. Raises as `get` does.
        """
        stop = StopSignal(deadline_seconds)
        job = WebFetch(
            self._files,
            content,
            owner_of(owner),
            stop,
            origin=origin,
            gateways=gateways,
            tally=self.fetched.add,
        )
        lock, entry = await self._ensure(content.root, job.run, stop)
        return Lease(Stat(content.root, entry.size), self._files.place(content.root), lock)

    # -------------------------------------------------------------------------------------- keeping

    async def pin(self, cid: Cid, owner: str | Owner, until: float | None = None) -> None:
        """Pins stored content for `owner` until `until`. It can extend a pin but never shortens
        one. Raises `Refused(NOT_STORED | QUOTA)`.
        """
        async with await self.lease(cid):
            await in_thread(self._threads, lambda: self._files.pin(cid, owner_of(owner), until))

    async def unpin(self, cid: Cid, owner: str) -> None:
        await in_thread(self._threads, lambda: self._files.index.unpin(str(cid.as_v1()), owner))

    async def unpin_all(self, owner: str) -> None:
        await in_thread(self._threads, lambda: self._files.index.unpin_all(owner))

    async def owners_of(self, cid: Cid) -> list[str]:
        return await in_thread(self._threads, lambda: self._files.index.owners_of(str(cid.as_v1())))

    async def stat(self, cid: Cid) -> Stat | None:
        entry = await in_thread(self._threads, lambda: self._files.entry(cid))
        return None if entry is None else Stat(cid, entry.size)

    async def objects(self) -> list[ListedObject]:
        return await in_thread(self._threads, self._files.index.objects)

    async def resolve(self, digest: bytes) -> Cid | None:
        """Returns the stored CID with this digest, or None. Messages carry digests, which do not
        say whether a block is raw or dag-pb.
        """
        found = await in_thread(self._threads, lambda: self._files.index.find_digest(digest))
        return None if found is None else parse(found)

    async def is_pinned_for(self, cid: Cid, owner: str) -> bool:
        return await in_thread(
            self._threads, lambda: self._files.index.is_pinned_for(str(cid.as_v1()), owner)
        )

    async def extend_pins(self, named: Sequence[tuple[bytes, str]], until: float) -> None:
        await in_thread(self._threads, lambda: self._files.index.extend_pins(named, until))

    async def transfer_pins(self, moves: Sequence[PinTransfer]) -> list[bytes]:
        """Moves pins to other owners, whatever their quotas. Returns the digests of objects that
        are not stored.
        """
        return await in_thread(self._threads, lambda: self._files.index.transfer_pins(moves))

    async def owned(self) -> dict[str, int]:
        return await in_thread(self._threads, self._files.index.owned)

    async def set_weights(self, weights: Mapping[str, int]) -> None:
        await in_thread(self._threads, lambda: self._files.index.set_weights(weights))

    async def used_bytes(self) -> int:
        return await in_thread(self._threads, self._files.index.used)

    async def available_bytes(self) -> int:
        """Returns how many bytes could be added and kept now, by the quota and by the disk. Idle
        content counts as free.
        """
        return await in_thread(self._threads, self._files.room)

    async def gc(self, target_bytes: int) -> int:
        """Evicts idle content, least recently used first, until at most `target_bytes` are used.
        Returns the bytes freed.
        """
        used = await self.used_bytes()
        return (
            await in_thread(self._threads, lambda: self._files.evict(used - target_bytes))
            if used > target_bytes
            else 0
        )

    # -------------------------------------------------------------------------------------- reading

    async def lease(self, cid: Cid) -> Lease:
        """Returns a lease on stored content and never fetches. Raises `Refused(NOT_STORED)` if it
        is absent.
        """
        lock, entry = await self._ensure(cid, None, StopSignal(60.0))
        return Lease(Stat(cid, entry.size), self._files.place(cid), lock)

    async def block(self, cid: Cid) -> bytes:
        async with await self.lease(cid) as lease:
            return await in_thread(self._threads, lambda: self._root_block(cid, lease.path))

    async def export_car(
        self,
        cid: Cid,
        from_byte: int = 0,
        only_root: bool = False,
        place: BlockPlace | None = None,
        from_entry: TreePath = (),
    ) -> AsyncIterator[bytes]:
        """Yields the object's CAR in pieces of about 1 MiB. `from_byte` omits leaves of a file that
        end before it, `from_entry` the entries of a directory before that one. `place`: where `cid`
        is, if it is a file or directory inside an object.
        """
        root, inner = (cid, ()) if place is None else (place.root, place.path)
        async with await self.lease(root) as lease:
            nodes = await in_thread(self._threads, lambda: self._files.nodes(root))
            path = path_in_tree(lease.path, inner)
            pieces = car_pieces(cid, path, nodes, from_byte, only_root, from_entry)
            while piece := await in_thread(self._threads, lambda: next(pieces, b"")):
                yield piece

    async def locate(self, cid: Cid, reads: bool = False) -> Located:
        """Returns where a block is. `reads`: also the block, if it is inside of a stored object."""

        def look() -> Located:
            is_stored, places = self._files.entry(cid) is not None, self._files.blocks.find(cid)
            is_read = reads and places and not is_stored
            block = self._read_inner(cid, places[0]) if is_read else None
            return Located(is_stored, places, block)

        # One step in a thread of its own: readers ask for thousands of blocks, and each step costs.
        return await in_thread(self._threads, look)

    async def inner_block(self, cid: Cid, place: BlockPlace) -> bytes:
        """Returns a block from inside an object. Raises `Refused(NOT_STORED)` if it was removed."""
        block = await in_thread(self._threads, lambda: self._read_inner(cid, place))
        if block is not None:
            return block
        async with await self.lease(place.root):
            return await in_thread(self._threads, lambda: self._read_place(cid, place))

    def _read_inner(self, cid: Cid, place: BlockPlace) -> bytes | None:
        """Returns a block from inside an object, or None if the object is being made or removed."""
        lock = self._files.try_lock(str(place.root.as_v1()), is_shared=True)
        if lock is None:
            return None
        try:
            is_here = self._files.entry(place.root) is not None
            return self._read_place(cid, place) if is_here else None
        finally:
            lock.release()

    def _read_place(self, cid: Cid, place: BlockPlace) -> bytes:
        path = Path(self._files.place(place.root))
        return self._read_block(place.expected(cid), place.root, path)

    def _root_block(self, cid: Cid, path: Path) -> bytes:
        return self._read_block(ExpectedBlock(cid, ()), cid, path)

    def _read_block(self, expected: ExpectedBlock, root: Cid, path: Path) -> bytes:
        cid = expected.cid
        # Leaves are in the files. Only a dag-pb block can be a node, and a long file has many.
        nodes = self._files.nodes(root) if cid.codec == Codec.DAG_PB else {}
        blocks = LocalBlocks(path, nodes)
        try:
            block = blocks.supply(expected)
            if block is None:
                raise BadSource(f"block {cid} is not in the store")
            return bytes(block)
        finally:
            blocks.close()

    # ----------------------------------------------------------------------------------------
    # helpers

    async def _bring_in(
        self,
        work: str,
        owner: Owner,
        until: float | None,
        stop: StopSignal,
        build: Callable[[], "FinishedObject"],
    ) -> Stat:
        alive = await self._lock(work, False, stop)
        try:
            done = await in_thread(self._threads, build, stop)
            lock, entry = await self._ensure(
                done.cid, lambda: done.publish(self._files, work), stop
            )
            try:
                # The reservation ends before the pin begins, so that the owner is not charged
                # twice.
                await in_thread(self._threads, lambda: self._files.index.release(work))
                await in_thread(self._threads, lambda: self._files.pin(done.cid, owner, until))
            finally:
                lock.release()
            return Stat(done.cid, entry.size)
        finally:
            await in_thread(self._threads, lambda: self._files.discard(work))
            alive.release()

    async def _ensure(
        self, cid: Cid, make: Callable[[], None] | None, stop: StopSignal
    ) -> tuple[FileLock, StoredObject]:
        """Returns a shared lock on the object. If it is absent, `make` creates it first; one
        process at a time does so.
        """
        name, tries = str(cid.as_v1()), ENSURE_TRIES
        while tries:
            stop.check()
            is_here = self._files.has(cid)
            if not is_here and make is None:
                raise Refused(Code.NOT_STORED, str(cid))
            if is_here and (lock := self._files.try_lock(name, is_shared=True)) is not None:
                entry = await in_thread(self._threads, lambda: self._files.entry(cid))
                if entry is not None:
                    return lock, entry
                lock.release()
            # Tried again after every pause: a thread that waits for the exclusive lock might never
            # get it while others hold leases.
            maker = self._files.try_lock(name, is_shared=False)
            if maker is None:
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
                continue
            tries -= 1
            try:
                if self._files.has(cid):
                    await in_thread(self._threads, lambda: self._files.index_unlisted_object(cid))
                elif make is not None:
                    await in_thread(self._threads, make, stop)
            finally:
                maker.release()
        raise Unavailable(
            f"{cid} was evicted as fast as it arrived; the store is too small for its load",
            retry_after=10.0,
        )

    async def _lock(self, name: str, is_shared: bool, stop: StopSignal) -> FileLock:
        # Polls instead of waiting in a thread, because a thread that waits in flock cannot be
        # cancelled.
        while (lock := self._files.try_lock(name, is_shared)) is None:
            stop.check()
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        return lock


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
