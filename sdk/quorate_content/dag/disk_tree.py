"""Trees on disk: `TreeWriter` writes one, `LocalBlocks` reads its blocks, `build_path` computes its
CID.

Directories are opened by descriptor, and files with O_NOFOLLOW and O_EXCL. So neither a hostile DAG
nor a link in the source leads outside the root. Only regular files and directories are supported,
without times and modes.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from quorate_content.dag.cid import EMPTY, Cid, Codec
from quorate_content.dag.content_limits import BadSource, Bounds, DiskFull, malformed, oversize
from quorate_content.dag.dagpb import leaf_block
from quorate_content.dag.unixfs import V1_2025, Built, Emit, FileBuilder, Profile, build_directory
from quorate_content.dag.varint import decode_varint, encode_varint
from quorate_content.dag.walk import Block, DagWalk, ExpectedBlock, Role, Sink, TreePath, check_path
from quorate_protocol.units import Hash32

FILE_MODE, DIRECTORY_MODE = 0o444, 0o555
# The least disk space of a directory entry: its block and its inode. A disk has about one inode for
# each 16 KiB.
ENTRY_BYTES = 8 * 1024
BLOCK_BYTES_MAX = Bounds().block_bytes_max
LOCATED_MAX = 1 << 16  # leaves whose position is kept, for CARs that omit repeated blocks
Nodes = dict[Hash32, bytes]
"""dag-pb nodes by digest. `Bounds.node_bytes_max` bounds their total size."""


class TreeWriter:
    """A sink that builds `target`: a file or a directory, as the DAG says. Calls `reserve` with the
    total before it takes space.

    With `resume` what an earlier attempt left at `target` is written in place. The root directory
    stays writable so that it can be renamed; the store's `publish` makes it read-only.
    """

    def __init__(
        self,
        target: Path,
        bounds: Bounds,
        reserve: Callable[[int], None] | None = None,
        resume: bool = False,
    ) -> None:
        self.target = target
        self.nodes: Nodes = {}
        self.is_replaying = False  # resume in place: the bytes that come are already in the file
        self.journal: BinaryIO | None = None  # receives every new node, for a resume after a crash
        self.progress: Callable[[int], None] | None = None  # told the bytes written so far
        self._written = 0
        self._bounds, self._reserve, self._resume = bounds, reserve, resume
        self._directories: list[int] = []
        self._file: int | None = None
        # `disk_bytes` counts disk space, of which empty files take some too
        self.total = self.disk_bytes = self._node_bytes = 0
        self._located: dict[Hash32, ExpectedBlock] = {}
        self._blocks = LocalBlocks(target, self.nodes)

    def enter(self, path: TreePath) -> None:
        self._reserve_entry(path, 0)
        name, parent = path[-1] if path else self.target, self._parent(path)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            if not self._resume:
                raise
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        self._directories.append(descriptor)
        os.fchmod(descriptor, 0o755)  # an earlier attempt may have completed it

    def leave(self, path: TreePath) -> None:
        """Makes the directory read-only."""
        descriptor = self._directories.pop()
        try:
            if path:
                os.fchmod(descriptor, DIRECTORY_MODE)
        finally:
            os.close(descriptor)

    def open(self, path: TreePath, size: int) -> None:
        """Creates the file after it reserved the space, so that a full disk shows before the
        download. fallocate is not used: on a tmpfs it costs as much as writing the file.
        """
        self.total += size
        self._reserve_entry(path, size)
        name, parent = path[-1] if path else self.target, self._parent(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (0 if self._resume else os.O_EXCL)
        if self._resume:
            with suppress(FileNotFoundError):
                os.chmod(name, 0o600, dir_fd=parent)  # an earlier attempt may have completed it
        self._file = os.open(name, flags, 0o600, dir_fd=parent)

    def write(self, path: TreePath, offset: int, data: Block) -> None:
        assert self._file is not None
        if self.is_replaying and isinstance(data, memoryview):
            return  # read from this very file; bytes inside a node may not have been written yet
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._file, view, offset)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(str(self.target)) from error
                raise
            view, offset = view[count:], offset + count
        if self.progress is not None:
            self._written += len(data)
            self.progress(self._written)

    def left_over(self, size: int, buffer: memoryview) -> Iterator[memoryview]:
        """Yields what an earlier attempt left of the open file, up to `size` bytes."""
        assert self._file is not None
        at = 0
        while at < size and (
            count := os.preadv(self._file, [buffer[: min(len(buffer), size - at)]], at)
        ):
            yield buffer[:count]
            at += count

    def close(self, path: TreePath, size: int) -> None:
        """Cuts the file to its size and makes it read-only."""
        assert self._file is not None
        os.ftruncate(self._file, size)
        os.fchmod(self._file, FILE_MODE)
        descriptor, self._file = self._file, None
        os.close(descriptor)

    def node(self, cid: Cid, block: Block) -> None:
        if cid.digest not in self.nodes:
            self._node_bytes += len(block)
            if self._node_bytes > self._bounds.node_bytes_max:
                raise oversize("bytes of nodes", self._bounds.node_bytes_max)
            self.nodes[cid.digest] = bytes(block)
            if self.journal is not None:
                self.journal.write(encode_varint(len(block)) + bytes(block))
                self.journal.flush()

    def leaf(self, expected: ExpectedBlock, block: Block) -> None:
        if len(self._located) < LOCATED_MAX:
            self._located.setdefault(expected.cid.digest, expected)

    def seen(self, cid: Cid) -> bool:
        return cid.digest in self.nodes or cid.digest in self._located

    def known(self, expected: ExpectedBlock) -> Block | None:
        """Returns a block that was written already or is empty, or None. Blocks repeat. And bitswap
        does not send the empty block, so nobody waits for it.
        """
        if expected.cid.same_block(EMPTY):
            return b""
        if expected.cid.digest in self.nodes:
            return self.nodes[expected.cid.digest]
        place = self._located.get(expected.cid.digest)
        return None if place is None else self._blocks.supply(place)

    def abandon(self) -> None:
        """Closes every descriptor. What was written stays."""
        self._blocks.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        while self._directories:
            os.close(self._directories.pop())

    def _reserve_entry(self, path: TreePath, size: int) -> None:
        self.disk_bytes += entry_bytes(path != (), size)
        if self._reserve is not None:
            self._reserve(self.disk_bytes)

    def _parent(self, path: TreePath) -> int | None:
        return self._directories[-1] if path else None


def entry_bytes(is_inside: bool, size: int) -> int:
    """Returns the disk bytes that a file or directory counts as; `is_inside` means inside a
    directory. Without a minimum, a few megabytes of empty files would use up all inodes.
    """
    return max(size, ENTRY_BYTES) if is_inside else size


class LocalBlocks:
    """Reads the blocks of the tree at `root` from its files and nodes. Verifies nothing:
    `DagWalk.feed` does. `follows_links`: as `build_path` did.
    """

    def __init__(self, root: Path, nodes: Nodes, follows_links: bool = False) -> None:
        self._root, self._nodes = root, nodes
        self._flags = os.O_RDONLY | (0 if follows_links else os.O_NOFOLLOW)
        self._buffer = memoryview(bytearray())
        self._open_path: TreePath | None = None
        self._descriptor = -1

    def supply(self, expected: ExpectedBlock) -> Block | None:
        if expected.cid.codec == Codec.DAG_PB and expected.cid.digest in self._nodes:
            return self._nodes[expected.cid.digest]
        if expected.role is Role.SHARD:
            return None
        data = self._read(expected)
        if data is None or expected.cid.codec == Codec.RAW:
            return data
        return leaf_block(data)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._open_path, self._descriptor = None, -1

    def _read(self, expected: ExpectedBlock) -> memoryview | None:
        try:
            self._select(expected.path)
            wanted = expected.size
            if wanted is None:
                wanted = os.fstat(self._descriptor).st_size - expected.offset
            if wanted > BLOCK_BYTES_MAX:
                return None
            if wanted > len(self._buffer):
                self._buffer = memoryview(bytearray(wanted))
            count = os.preadv(self._descriptor, [self._buffer[:wanted]], expected.offset)
        except OSError:  # an unreadable block is absent, and the caller reports that
            return None
        return self._buffer[:count] if count == wanted else None

    def _select(self, path: TreePath) -> None:
        if path != self._open_path:
            self.close()
            self._descriptor = os.open(path_in_tree(self._root, path), self._flags)
            self._open_path = path


def path_in_tree(root: Path, path: TreePath) -> Path:
    return root.joinpath(*(os.fsdecode(name) for name in path))


def resume_walk(walk: DagWalk, blocks: LocalBlocks, stopped: Callable[[], None]) -> None:
    """Feeds a walk all blocks on disk that verify. Stops at the first block that is absent or
    wrong.
    """
    while (expected := walk.expected) is not None:
        stopped()
        block = blocks.supply(expected)
        if block is None:
            return
        try:
            walk.feed(block)
        except BadSource:  # the part on disk ends here, and the rest is fetched
            return


def cid_of_path(path: str | Path, profile: Profile = V1_2025, bounds: Bounds | None = None) -> Cid:
    """Returns the CID of a file or directory. Blocks, so call it in a thread. Raises
    `Refused(MALFORMED)` for links, devices, pipes and bad names.
    """
    return build_path(Path(path), profile, None, None, bounds or Bounds()).cid


def build_path(
    path: Path,
    profile: Profile,
    emit: Emit | None,
    sink: Sink | None,
    bounds: Bounds,
    follows_links: bool = False,
) -> Built:
    """Builds the tree at `path` bottom up and emits its nodes. With a sink, copies the tree in the
    same pass. `follows_links`: a link that stays inside the tree counts as what it points to. That
    is for a user's own files, and never for a stranger's.
    """
    return _TreeScan(profile, emit, sink, bounds, follows_links).run(path)


class _TreeScan:
    """One pass over a source tree, with the counters for its bounds."""

    def __init__(
        self,
        profile: Profile,
        emit: Emit | None,
        sink: Sink | None,
        bounds: Bounds,
        follows_links: bool,
    ) -> None:
        self._profile, self._emit, self._sink, self._bounds = profile, emit, sink, bounds
        self._follows_links, self._root = follows_links, Path()
        self._buffer = memoryview(bytearray(profile.chunk_bytes))
        self._entries = self._bytes = 0

    def run(self, path: Path) -> Built:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise malformed(
                f"{path} cannot be read as a file or directory: {error.strerror}"
            ) from error
        self._root = path.resolve()
        return self._any(descriptor, ())

    def _any(self, descriptor: int, path: TreePath) -> Built:
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                return self._directory(descriptor, path)
            if stat.S_ISREG(mode):
                return self._file(descriptor, path)
            raise malformed(f"{_path_text(path)} is neither a regular file nor a directory")
        finally:
            os.close(descriptor)

    def _directory(self, descriptor: int, path: TreePath) -> Built:
        if len(path) >= self._bounds.directory_depth_max:
            raise oversize(
                f"depth of directories at {_path_text(path[:3])}", self._bounds.directory_depth_max
            )
        if self._sink is not None:
            self._sink.enter(path)
        entries = {
            name: self._any(self._open(descriptor, (*path, name)), (*path, name))
            for name in self._names(descriptor, path)
        }
        if self._sink is not None:
            self._sink.leave(path)
        return build_directory(entries, self._profile, self._emit)

    def _names(self, descriptor: int, path: TreePath) -> list[bytes]:
        names = []
        with os.scandir(descriptor) as found:
            for entry in found:
                self._entries += 1
                if self._entries > self._bounds.entries_max:
                    raise oversize(
                        f"entries of directories at {_path_text(path)}", self._bounds.entries_max
                    )
                names.append(os.fsencode(entry.name))
        for name in names:
            check_path((*path, name), self._bounds)
        return sorted(names)

    def _open(self, directory: int, path: TreePath) -> int:
        try:
            return os.open(path[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:  # the system's message speaks of a loop instead
                if self._follows_links:
                    return self._open_target(path)
                raise malformed(
                    f"{_path_text(path)} is a symbolic link; copy what it points to (cp -rL)"
                ) from error
            raise malformed(
                f"{_path_text(path)} cannot be read as a file or directory: {error.strerror}"
            ) from error

    def _open_target(self, path: TreePath) -> int:
        """Opens what a link points to, if that lies in the tree and does not hold the link."""
        place, why = path_in_tree(self._root, path), ""
        try:
            real = place.resolve(strict=True)
            above = [path_in_tree(self._root, path[:depth]) for depth in range(len(path))]
            if not real.is_relative_to(self._root):
                why = "leads out of the folder; give a folder that holds both"
            elif real in {item.resolve() for item in above}:
                why = "leads to a folder around it, in a circle; remove it"
            else:
                return os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, RuntimeError):  # a circle of links is the one or the other
            why = "leads to nothing, or to other links in a circle; remove it"
        raise malformed(
            f"{_path_text(path)} is a symbolic link that {why}, or copy what it means (cp -rL)"
        )

    def _file(self, descriptor: int, path: TreePath) -> Built:
        size = os.fstat(descriptor).st_size
        self._bytes += size
        if self._bytes > self._bounds.bytes_max:
            raise oversize(f"bytes of content at {_path_text(path)}", self._bounds.bytes_max)
        if self._sink is not None:
            self._sink.open(path, size)
        builder, offset = FileBuilder(self._profile, self._emit), 0
        for chunk in _chunks(descriptor, self._buffer):
            builder.add(chunk)
            if offset + len(chunk) > size:
                break
            if self._sink is not None:
                self._sink.write(path, offset, chunk)
            offset += len(chunk)
        if offset != size or os.fstat(descriptor).st_size != size:
            raise malformed(f"{_path_text(path)} changed while it was read")
        if self._sink is not None:
            self._sink.close(path, size)
        return builder.finish()


def _chunks(descriptor: int, buffer: memoryview) -> Iterator[memoryview]:
    """Yields full chunks in one reused buffer. Only the last may be shorter."""
    while True:
        filled = 0
        while filled < len(buffer) and (count := os.readv(descriptor, [buffer[filled:]])):
            filled += count
        if filled:
            yield buffer[:filled]
        if filled < len(buffer):
            return


def _path_text(path: TreePath) -> str:
    return b"/".join(path).decode(errors="replace")[:200] or "the root"


def keep_nodes(nodes: Nodes) -> Emit:
    def emit(cid: Cid, block: bytes) -> None:
        nodes[cid.digest] = block

    return emit


def dump_nodes(nodes: Nodes) -> bytes:
    return b"".join(encode_varint(len(block)) + block for block in nodes.values())


def load_nodes(path: str | Path, bounds: Bounds) -> Nodes:
    """Reads nodes written by `dump_nodes` or a journal, up to a truncated end. A missing file means
    no nodes. Each node is listed under its true hash.
    """
    nodes: Nodes = {}
    try:
        with open(path, "rb") as file:
            raw = file.read(2 * bounds.node_bytes_max)
    except FileNotFoundError:  # a file of one block has no nodes
        return nodes
    at = 0
    while at < len(raw):
        try:
            length, at = decode_varint(raw, at)
        except ValueError:  # a kill can cut the end of a journal
            break
        block = raw[at : at + length]
        if len(block) < length:
            break
        nodes[Hash32(sha256(block).digest())] = block
        at += length
    return nodes


def remove_tree(path: str | Path) -> None:
    """Removes a file or a read-only tree. Absent is fine."""
    try:
        is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_directory:
        with suppress(FileNotFoundError):
            os.unlink(path)
        return
    os.chmod(path, 0o755)
    for name in os.listdir(path):
        remove_tree(os.path.join(path, name))
    os.rmdir(path)


def sync_tree(path: str | Path) -> None:
    """Makes a file or a whole tree durable. A tree gets one syncfs, because thousands of fsync
    calls take minutes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "syncfs failed", str(path))
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str | Path) -> None:
    """Makes renames inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
