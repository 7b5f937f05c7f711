"""The content store: verified files and directories by CID, with leases, pins, quotas and
eviction. Async; all work is in threads.

    async with await store.get(cid, sources, bytes_max, deadline_seconds, owner) as lease:
        ... lease.path is a verified, read-only file or directory for as long as the lease is held ...

Several processes may share one store: a CID is fetched once, by whoever comes first, and the
others wait for it.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from quorate_content.content_limits import MIB, BadSource, Bounds
from quorate_content.dag.car import Progress, read_car, write_car
from quorate_content.dag.cid import Cid, parse
from quorate_content.dag.disk_tree import (
    LocalBlocks,
    Nodes,
    TreeWriter,
    build_path,
    dump_nodes,
    keep_nodes,
    load_nodes,
    remove_tree,
    resume_walk,
)
from quorate_content.dag.unixfs import V1_2025, Built, FileBuilder
from quorate_content.dag.walk import Expected, NullSink, Role, Walk
from quorate_content.store.index import Entry, Move, Need, Owner, owner_of
from quorate_content.store.locks import FileLock
from quorate_content.store.store_files import PUT_PREFIX, StoreFiles
from quorate_content.threads import Stop, StreamReader, in_thread
from quorate_content.transfer.fetch import Source, fetch
from quorate_protocol.refusals import Code, Refused, Unavailable

THREADS = 64  # most of them wait for the network
DAY_SECONDS = 86_400.0
SPARE_BYTES = 64 * MIB
LOCK_PAUSE_SECONDS = 0.02
ENSURE_TRIES = 16


@dataclass(frozen=True, slots=True)
class Stat:
    """A stored object. `size`: bytes of its files."""

    cid: Cid
    size: int


class Lease:
    """The right to read `path` (a verified file or directory, read-only) until released;
    eviction passes it over.
    """

    def __init__(self, stat: Stat, place: str, lock: FileLock) -> None:
        self.cid, self.size = stat.cid, stat.size
        self._place, self._lock = place, lock

    @property
    def path(self) -> Path:
        """Where the object is."""
        return Path(self._place)

    def release(self) -> None:
        """Ends the lease; again is fine."""
        self._lock.release()

    async def __aenter__(self) -> "Lease":
        """The lease itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the lease."""
        self.release()


class ContentStore:
    """One folder of content. `quota_bytes` for everything, `owner_quota_bytes` for what one
    owner pins or is fetching.

    With `protects` (asked in threads: who needs a CID) the pins of owners who hold most for
    their weight yield to others.
    """

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        owner_quota_bytes: int | None = None,
        spare_bytes: int = SPARE_BYTES,
        now: Callable[[], float] = time.time,
        protects: Callable[[str], Need] | None = None,
    ) -> None:
        owner_quota = quota_bytes if owner_quota_bytes is None else owner_quota_bytes
        self._files = StoreFiles(Path(root), quota_bytes, owner_quota, spare_bytes, now, protects)
        self._quota = quota_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="content")

    async def close(self) -> None:
        """Waits for threads and closes the index. Leases must have been released."""
        await asyncio.to_thread(self._threads.shutdown)
        self._files.index.close()

    # ---------------------------------------------------------------------------------- bringing in

    async def put(
        self,
        content: Path | bytes | AsyncIterator[bytes],
        owner: str | Owner,
        until: float | None = None,
        bytes_max: int | None = None,
        deadline_seconds: float = DAY_SECONDS,
    ) -> Stat:
        """Copies in a file, a directory, bytes or a stream, pinned for `owner` until `until`
        (unix seconds; None: until unpinned).

        `Refused(QUOTA | OVERSIZE | MALFORMED)`; `Unavailable` when the disk is full or the
        stream too slow.
        """
        stop, work = Stop(deadline_seconds), PUT_PREFIX + secrets.token_hex(8)
        bounds = replace(Bounds(), bytes_max=self._quota if bytes_max is None else bytes_max)
        owner = owner_of(owner)
        job = _Put(self._files, work, owner, bounds, stop)
        if isinstance(content, Path):
            source = content
            return await self._bring_in(work, owner, until, stop, lambda: job.copy(source))
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
        """Takes a whole DAG from a CAR, verified; pinned as by `put`. Anything missing, wrong or
        too large is refused.
        """
        stop, work = Stop(deadline_seconds), PUT_PREFIX + secrets.token_hex(8)
        bounds = replace(Bounds(), bytes_max=bytes_max)
        owner = owner_of(owner)
        job = _Put(self._files, work, owner, bounds, stop)
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
        """A lease on the content, fetched from the first of `sources` that has it unless it is
        here. Use as `async with await ...`.

        `progress` is called in a thread. `Refused(OVERSIZE | QUOTA | MALFORMED)`; `Unavailable`
        when no source gave it in time; what was verified by then is kept and the next `get` goes
        on from there.
        """
        cid = parse(cid) if isinstance(cid, str) else cid
        stop = Stop(deadline_seconds)
        named = tuple(Source(source) if isinstance(source, str) else source for source in sources)
        job = _Get(
            self._files, cid.as_v1(), owner_of(owner), replace(Bounds(), bytes_max=bytes_max), stop
        )
        lock, entry = await self._ensure(cid, lambda: job.run(cid, named, progress), stop)
        if entry.size > bytes_max:
            lock.release()
            raise Refused(
                Code.OVERSIZE, f"{cid} has {entry.size} bytes, at most {bytes_max} are allowed"
            )
        return Lease(Stat(cid, entry.size), self._files.place(cid), lock)

    # -------------------------------------------------------------------------------------- keeping

    async def pin(self, cid: Cid, owner: str | Owner, until: float | None = None) -> None:
        """Keeps stored content for `owner` until `until`; prolongs, never shortens.
        `Refused(NOT_STORED | QUOTA)`.
        """
        async with await self.lease(cid):
            await in_thread(self._threads, lambda: self._files.pin(cid, owner_of(owner), until))

    async def unpin(self, cid: Cid, owner: str) -> None:
        """Gives up one owner's pin; the content stays until its space is needed."""
        await in_thread(self._threads, lambda: self._files.index.unpin(str(cid.as_v1()), owner))

    async def unpin_all(self, owner: str) -> None:
        """Gives up all pins of one owner."""
        await in_thread(self._threads, lambda: self._files.index.unpin_all(owner))

    async def stat(self, cid: Cid) -> Stat | None:
        """What is stored under the CID, or None."""
        entry = await in_thread(self._threads, lambda: self._files.entry(cid))
        return None if entry is None else Stat(cid, entry.size)

    async def resolve(self, digest: bytes) -> Cid | None:
        """The stored CID with this digest: messages carry digests, which do not say whether a
        block is raw or dag-pb.
        """
        found = await in_thread(self._threads, lambda: self._files.index.find_digest(digest))
        return None if found is None else parse(found)

    async def prolong(self, named: Sequence[tuple[bytes, str]], until: float) -> None:
        """Pins of these (digest, owner) last at least until then, where there are any."""
        await in_thread(self._threads, lambda: self._files.index.prolong(named, until))

    async def hand_over(self, moves: Sequence[Move]) -> list[bytes]:
        """Kept for others from now on, whatever their quotas; digests of what is not here."""
        return await in_thread(self._threads, lambda: self._files.index.hand_over(moves))

    async def owned(self) -> dict[str, int]:
        """Bytes that each owner has pinned or is bringing in."""
        return await in_thread(self._threads, self._files.index.owned)

    async def weigh(self, weights: Mapping[str, int]) -> None:
        """New weights of owners."""
        await in_thread(self._threads, lambda: self._files.index.weigh(weights))

    async def used_bytes(self) -> int:
        """Bytes of all objects and of work in progress."""
        return await in_thread(self._threads, self._files.index.used)

    async def room_bytes(self) -> int:
        """Bytes that could be brought in and kept now: of the quota, and of the disk, of which
        idle content would yield.
        """
        return await in_thread(self._threads, self._files.room)

    async def gc(self, target_bytes: int) -> int:
        """Evicts idle content, least recently used first, until at most `target_bytes` are used;
        bytes freed.
        """
        used = await self.used_bytes()
        return (
            await in_thread(self._threads, lambda: self._files.evict(used - target_bytes))
            if used > target_bytes
            else 0
        )

    # -------------------------------------------------------------------------------------- reading

    async def lease(self, cid: Cid) -> Lease:
        """A lease on what is here; `Refused(NOT_STORED)` otherwise. Never fetches."""
        lock, entry = await self._ensure(cid, None, Stop(60.0))
        return Lease(Stat(cid, entry.size), self._files.place(cid), lock)

    async def block(self, cid: Cid) -> bytes:
        """The root block of a stored object."""
        async with await self.lease(cid) as lease:
            return await in_thread(self._threads, lambda: self._root_block(cid, lease.path))

    async def export_car(
        self, cid: Cid, from_byte: int = 0, only_root: bool = False
    ) -> AsyncIterator[bytes]:
        """The object's CAR in pieces of about 1 MiB. `from_byte` leaves out a file's leaves that
        end before it.
        """
        async with await self.lease(cid) as lease:
            nodes = await in_thread(self._threads, lambda: self._files.nodes(cid))
            pieces = _car_pieces(cid, lease.path, nodes, from_byte, only_root)
            while piece := await in_thread(self._threads, lambda: next(pieces, b"")):
                yield piece

    def _root_block(self, cid: Cid, path: Path) -> bytes:
        blocks = LocalBlocks(path, self._files.nodes(cid))
        try:
            block = blocks.supply(Expected(cid, ()))
            if block is None:
                raise BadSource(f"block {cid} is not here")
            return bytes(block)
        finally:
            blocks.close()

    # ---------------------------------------------------------------------------------------- inner

    async def _bring_in(
        self,
        work: str,
        owner: Owner,
        until: float | None,
        stop: Stop,
        build: Callable[[], "_Finished"],
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
        self, cid: Cid, make: Callable[[], None] | None, stop: Stop
    ) -> tuple[FileLock, Entry]:
        """A shared lock on the object, made first if it is absent; only one maker at a time,
        over all processes.
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
            # Looked at anew after every pause: a waiter for the exclusive lock would never get it
            # from lease holders.
            maker = self._files.try_lock(name, is_shared=False)
            if maker is None:
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
                continue
            tries -= 1
            try:
                if self._files.has(cid):
                    await in_thread(self._threads, lambda: self._files.adopt(cid))
                elif make is not None:
                    await in_thread(self._threads, make, stop)
            finally:
                maker.release()
        raise Unavailable(
            f"{cid} was evicted as fast as it came; the store is too small for its load",
            retry_after=10.0,
        )

    async def _lock(self, name: str, is_shared: bool, stop: Stop) -> FileLock:
        # Polled rather than waited for in a thread: a thread in flock cannot be cancelled.
        while (lock := self._files.try_lock(name, is_shared)) is None:
            stop.check()
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        return lock


@dataclass(frozen=True, slots=True)
class _Finished:
    """A complete tree in `tmp`, not yet published."""

    cid: Cid
    size: int
    booked: int  # bytes of the disk
    nodes: Nodes

    def publish(self, shelf: StoreFiles, work: str) -> None:
        shelf.publish(self.cid, work, self.nodes, self.size, self.booked)


class _Put:
    """Builds one object in `tmp` from local content. Blocks; errors leave nothing but the
    folder, which the caller removes.
    """

    def __init__(
        self, shelf: StoreFiles, work: str, owner: Owner, bounds: Bounds, stop: Stop
    ) -> None:
        self._files, self._work, self._owner, self._bounds, self._stop = (
            shelf,
            work,
            owner,
            bounds,
            stop,
        )

    def copy(self, source: Path) -> _Finished:
        nodes: Nodes = {}
        writer = self._writer()
        try:
            built = build_path(source, V1_2025, keep_nodes(nodes), writer, self._bounds)
        finally:
            writer.abandon()
        return _Finished(built.cid, writer.total, writer.booked, nodes)

    def read(self, reader: StreamReader) -> _Finished:
        nodes: Nodes = {}
        target = f"{self._files.work(self._work)}/tree"
        with open(target, "xb", buffering=0) as file:
            built = self._copy(reader, file.write, FileBuilder(V1_2025, keep_nodes(nodes)))
        os.chmod(target, 0o444)
        return _Finished(built.cid, built.size, built.size, nodes)

    def read_car(self, reader: StreamReader, root: Cid) -> _Finished:
        writer = self._writer()
        walk = Walk(root, writer, self._bounds)
        try:
            read_car(
                reader, walk, self._bounds, writer.known, writer.seen, lambda _: self._stop.check()
            )
        finally:
            writer.abandon()
        return _Finished(root, walk.bytes_opened, writer.booked, writer.nodes)

    def _copy(
        self, reader: StreamReader, write: Callable[[memoryview], int | None], builder: FileBuilder
    ) -> Built:
        buffer, total = memoryview(bytearray(V1_2025.chunk_bytes)), 0
        while filled := _fill(reader, buffer):
            total += filled
            self._reserve(total)
            builder.add(buffer[:filled])
            written = 0
            while written < filled:
                written += write(buffer[written:filled]) or 0
        return builder.finish()

    def _writer(self) -> TreeWriter:
        return TreeWriter(Path(self._files.work(self._work), "tree"), self._bounds, self._reserve)

    def _reserve(self, size: int) -> None:
        self._stop.check()
        self._files.reserve(self._work, self._owner, size)


class _Get:
    """Fetches one object into `tmp/<cid>`, going on from what an earlier attempt or process left
    there. Blocks.
    """

    def __init__(
        self, shelf: StoreFiles, cid: Cid, owner: Owner, bounds: Bounds, stop: Stop
    ) -> None:
        self._files, self._work, self._owner, self._bounds, self._stop = (
            shelf,
            str(cid),
            owner,
            bounds,
            stop,
        )

    def run(self, root: Cid, sources: tuple[Source, ...], progress: Progress | None) -> None:
        folder = Path(self._files.work(self._work))
        old_nodes = load_nodes(folder / "nodes", self._bounds)
        with open(folder / "nodes", "wb") as journal:
            journal.write(dump_nodes(old_nodes))  # without the tail that a kill may have cut
            journal.flush()
            writer = TreeWriter(folder / "tree", self._bounds, self._reserve, resume=True)
            walk = Walk(root, writer, self._bounds)
            try:
                self._resume(walk, writer, folder, old_nodes)
                writer.journal = journal
                fetch(root, sources, walk, writer, self._bounds, self._stop, progress)
            except Refused:
                self._files.discard(self._work)
                raise
            finally:
                writer.abandon()
        self._files.publish(root, self._work, writer.nodes, walk.bytes_opened, writer.booked)

    def _resume(self, walk: Walk, writer: TreeWriter, folder: Path, nodes: Nodes) -> None:
        """Verifies what is there again, without a journal of its own: a file in place, a
        directory by copying it to a new one.
        """
        part, old = folder / "tree", folder / "old"
        remove_tree(old)
        if part.is_dir():
            part.rename(old)
            part = old
        part_blocks = LocalBlocks(part, nodes)
        writer.is_replaying = part is not old
        try:
            resume_walk(walk, part_blocks, self._stop.check)
        finally:
            part_blocks.close()
            writer.is_replaying = False
            remove_tree(old)

    def _reserve(self, size: int) -> None:
        self._files.reserve(self._work, self._owner, size)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _fill(reader: StreamReader, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer) and (count := reader.readinto(buffer[filled:])):
        filled += count
    return filled


def _car_pieces(
    cid: Cid, path: Path, nodes: Nodes, from_byte: int, only_root: bool
) -> Iterator[bytes]:
    """The CAR in pieces of about 1 MiB. Not hashed again: every reader does that."""

    def wanted(expected: Expected) -> bool:
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
            Walk(cid, NullSink(), Bounds()), cid, blocks.supply, wanted, trusts_supply=True
        ):
            pending += piece
            if len(pending) >= MIB:
                yield bytes(pending)
                pending.clear()
        if pending:
            yield bytes(pending)
    finally:
        blocks.close()
