"""Walks a DAG depth first: says which block comes next, checks it, and passes its bytes on. No
input or output.

One state machine serves every reader (fetch, import, opening a sealed output) and, fed from disk,
the CAR writer. It keeps only a stack: the links of one path, not the DAG. Every block is hashed
before it is decoded.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Protocol

from quorate_content.dag.cid import Cid, Codec
from quorate_content.dag.content_limits import BadSource, Bounds, malformed, oversize
from quorate_content.dag.dagpb import HASH_MURMUR3, Kind, Link, Node, decode_node, leaf_block

Block = bytes | memoryview
TreePath = tuple[bytes, ...]
"""Names from the root; () is the root itself."""


class Role(Enum):
    """What an expected block is part of."""

    ENTRY = "entry"  # the root or a directory entry: a file or a directory begins here
    FILE = "file"  # an inner block of a file
    SHARD = "shard"  # an inner node of a sharded directory


@dataclass(frozen=True, slots=True)
class ExpectedBlock:
    """The block that must come next. `size` is what the parent declared, or None if it declares
    nothing.
    """

    cid: Cid
    path: TreePath
    role: Role = Role.ENTRY
    offset: int = 0
    size: int | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Close:
    path: TreePath
    size: int


@dataclass(frozen=True, slots=True)
class _Leave:
    path: TreePath


class Sink(Protocol):
    """Receives what a walk finds. Calls nest properly, and offsets within a file only grow."""

    def enter(self, path: TreePath) -> None: ...

    def leave(self, path: TreePath) -> None: ...

    def open(self, path: TreePath, size: int) -> None: ...

    def write(self, path: TreePath, offset: int, data: Block) -> None:
        """Verified bytes of the open file."""

    def close(self, path: TreePath, size: int) -> None: ...

    def node(self, cid: Cid, block: Block) -> None:
        """A verified dag-pb node that cannot be rebuilt from the tree's files."""

    def leaf(self, expected: ExpectedBlock, block: Block) -> None:
        """A verified leaf of a file, after its bytes were written: raw, or dag-pb in the form of
        `leaf_block`.
        """


class NullSink:
    """A sink that ignores everything, for walks that only verify or only navigate."""

    def enter(self, path: TreePath) -> None: ...

    def leave(self, path: TreePath) -> None: ...

    def open(self, path: TreePath, size: int) -> None: ...

    def write(self, path: TreePath, offset: int, data: Block) -> None: ...

    def close(self, path: TreePath, size: int) -> None: ...

    def node(self, cid: Cid, block: Block) -> None: ...

    def leaf(self, expected: ExpectedBlock, block: Block) -> None: ...


class DagWalk:
    """Feed it the block for `expected` until `expected` is None. It reads the blocks of identity
    CIDs by itself. Raises `BadSource` for wrong bytes, and `Refused` if the content breaks a rule.
    """

    def __init__(self, root: Cid, sink: Sink, bounds: Bounds, is_directory: bool = False) -> None:
        """Starts at `root`. `is_directory` refuses a root that is a file."""
        self._sink, self._bounds, self._is_directory = sink, bounds, is_directory
        self._stack: list[ExpectedBlock | _Close | _Leave] = [ExpectedBlock(root, ())]
        self._names: list[set[bytes]] = []  # of each directory on the path, so far
        self._entries = self._node_bytes = 0
        self._begun: ExpectedBlock | None = None  # the root of the entry that was begun last
        self.files_opened = 0
        self.bytes_opened = 0  # bytes of all files begun
        self.bytes_done = 0  # bytes of file written
        self.blocks_done = 0
        self._settle()

    @property
    def expected(self) -> ExpectedBlock | None:
        """Returns the next block to feed, or None when the DAG is complete."""
        top = self._stack[-1] if self._stack else None
        assert top is None or isinstance(top, ExpectedBlock)
        return top

    @property
    def entry(self) -> ExpectedBlock | None:
        """Returns the root block of the file or directory that comes next or was begun last. None
        when the DAG is complete.
        """
        expected = self.expected
        return expected if expected is None or expected.role is Role.ENTRY else self._begun

    def feed(self, block: Block, verified: bool = False) -> None:
        """Takes the bytes of the expected block. `verified` means that the caller has compared the
        hash.
        """
        expected = self._pop()
        if not verified and sha256(block).digest() != expected.cid.digest:
            self._stack.append(expected)
            raise BadSource(f"the received block does not match {expected.cid}")
        self._place(expected, block)
        self._settle()

    def skip(self) -> None:
        self._pop()
        self._settle()

    def _place(self, expected: ExpectedBlock, block: Block) -> None:
        self._count(len(block))
        if expected.role is Role.ENTRY:
            self._begun = expected
        if expected.cid.codec == Codec.RAW:
            self._place_raw(expected, block)
        else:
            self._place_node(expected, block)

    def _settle(self) -> None:
        """Ends what is complete, and reads inline blocks, until a block must come from outside."""
        self._unwind()
        while (expected := self.expected) is not None and expected.cid.inline is not None:
            self._pop()
            self._place(expected, expected.cid.inline)
            self._unwind()

    def _pop(self) -> ExpectedBlock:
        top = self._stack.pop()
        assert isinstance(top, ExpectedBlock)
        return top

    def _unwind(self) -> None:
        while self._stack and not isinstance(self._stack[-1], ExpectedBlock):
            done = self._stack.pop()
            if isinstance(done, _Close):
                self._sink.close(done.path, done.size)
            elif isinstance(done, _Leave):
                self._names.pop()
                self._sink.leave(done.path)

    def _count(self, size: int) -> None:
        self.blocks_done += 1
        if size > self._bounds.block_bytes_max:
            raise oversize("bytes of a block", self._bounds.block_bytes_max)
        if self.blocks_done > self._bounds.nodes_max:
            raise oversize("blocks of a DAG", self._bounds.nodes_max)

    def _place_raw(self, expected: ExpectedBlock, block: Block) -> None:
        if expected.role is Role.SHARD:
            raise malformed("a shard of a directory must not be a raw block")
        if expected.role is Role.ENTRY:
            self._open(expected.path, len(block))
        elif len(block) != expected.size:
            raise malformed(
                f"a leaf has {len(block)} bytes, but its parent declares {expected.size}"
            )
        self._write(expected, block, expected.offset)
        if expected.cid.inline is None:
            self._sink.leaf(expected, block)
        if expected.role is Role.ENTRY:
            self._sink.close(expected.path, len(block))

    def _place_node(self, expected: ExpectedBlock, block: Block) -> None:
        node = decode_node(block, self._bounds)
        self._node_bytes += len(block) - len(node.data)
        if self._node_bytes > self._bounds.node_visits_bytes_max:
            raise oversize(
                "bytes of nodes, counted at each visit", self._bounds.node_visits_bytes_max
            )
        if node.kind in (Kind.FILE, Kind.RAW) and expected.role is not Role.SHARD:
            self._place_file(expected, node)
        elif node.kind is Kind.HAMT and expected.role is not Role.FILE:
            self._place_shard(expected, node)
        elif node.kind is Kind.DIRECTORY and expected.role is Role.ENTRY:
            self._enter(expected)
            self._push_entries(expected.path, node.links, expected.depth)
        else:
            raise malformed(
                f"a {node.kind.name.lower()} node is not allowed here; symbolic links are not "
                "supported"
            )
        if expected.cid.inline is not None:
            return  # its link carries it, so nobody has to keep it
        if (
            node.links
            or node.kind not in (Kind.FILE, Kind.RAW)
            or leaf_block(node.data) != bytes(block)
        ):
            self._sink.node(expected.cid, block)
        else:
            self._sink.leaf(expected, block)

    def _place_file(self, expected: ExpectedBlock, node: Node) -> None:
        total = len(node.data) + sum(node.sizes)
        if len(node.sizes) != len(node.links) or node.file_size not in (None, total):
            raise malformed("a file's node contradicts itself about its size")
        if expected.depth >= self._bounds.file_depth_max:
            raise oversize("depth of a file", self._bounds.file_depth_max)
        if expected.role is Role.ENTRY:
            self._open(expected.path, total)
            self._stack.append(_Close(expected.path, total))
        elif total != expected.size:
            raise malformed(f"a subtree has {total} bytes, but its parent declares {expected.size}")
        if len(node.sizes) > 1 and 0 in node.sizes:
            # Honest builders never make empty children, and empty children would escape the bound
            # on bytes.
            raise malformed("a file's node has an empty child")
        self._write(expected, node.data, expected.offset)
        offset = expected.offset + len(node.data)
        depth = expected.depth + 1 if expected.role is Role.FILE else 1
        children = []
        for link, size in zip(node.links, node.sizes, strict=True):
            children.append(ExpectedBlock(link.cid, expected.path, Role.FILE, offset, size, depth))
            offset += size
        self._stack.extend(reversed(children))

    def _place_shard(self, expected: ExpectedBlock, node: Node) -> None:
        fanout = node.fanout
        if (
            node.hash_type != HASH_MURMUR3
            or not 8 <= fanout <= self._bounds.fanout_max
            or fanout & (fanout - 1)
        ):
            raise malformed("a sharded directory has an unknown hash or fanout")
        if int.from_bytes(node.data, "big").bit_count() != len(node.links):
            raise malformed("a shard's bit field contradicts its links")
        if expected.role is Role.ENTRY:
            self._enter(expected)
        elif expected.depth >= 16:
            raise oversize("depth of a sharded directory", 16)
        elif not node.links:
            # Honest builders never make empty shards, and empty shards would escape the bound on
            # entries.
            raise malformed("a sharded directory has an empty shard")
        digits = len(f"{fanout - 1:X}")
        depth = expected.depth + 1 if expected.role is Role.SHARD else 1
        below: list[ExpectedBlock] = []
        for link in node.links:
            if len(link.name) < digits:
                raise malformed("a shard's link has no bucket number")
            if len(link.name) == digits:
                below.append(ExpectedBlock(link.cid, expected.path, Role.SHARD, depth=depth))
            else:
                below.append(self._entry(expected.path, link.name[digits:], link))
        self._stack.extend(reversed(below))

    def _push_entries(self, path: TreePath, links: tuple[Link, ...], depth: int) -> None:
        self._stack.extend(reversed([self._entry(path, link.name, link) for link in links]))

    def _entry(self, path: TreePath, name: bytes, link: Link) -> ExpectedBlock:
        self._entries += 1
        if self._entries > self._bounds.entries_max:
            raise oversize("entries of directories", self._bounds.entries_max)
        if name in self._names[-1]:
            raise malformed(f"a directory holds the name {name[:60]!r} twice")
        self._names[-1].add(name)
        inside = (*path, name)
        check_path(inside, self._bounds)
        return ExpectedBlock(link.cid, inside)

    def _enter(self, expected: ExpectedBlock) -> None:
        if len(expected.path) >= self._bounds.directory_depth_max:
            raise oversize("depth of directories", self._bounds.directory_depth_max)
        self._sink.enter(expected.path)
        self._names.append(set())
        self._stack.append(_Leave(expected.path))

    def _open(self, path: TreePath, size: int) -> None:
        if self._is_directory and not path:
            raise malformed("the root is a file, not a directory")
        self.files_opened += 1
        self.bytes_opened += size
        if self.bytes_opened > self._bounds.bytes_max:
            raise oversize("bytes of content", self._bounds.bytes_max)
        self._sink.open(path, size)

    def _write(self, expected: ExpectedBlock, data: Block, offset: int) -> None:
        if len(data):
            self._sink.write(expected.path, offset, data)
            self.bytes_done += len(data)


def check_path(path: TreePath, bounds: Bounds) -> None:
    """Refuses a path that is too long, or whose last name could leave its directory or control a
    terminal.
    """
    name = path[-1]
    length = sum(map(len, path)) + len(path) - 1
    if length > bounds.path_bytes_max:
        start = b"/".join(path)[:60]
        raise malformed(
            f"the path {start!r}... has {length} bytes; at most {bounds.path_bytes_max}"
        )
    is_text = True
    try:
        name.decode()
    except UnicodeDecodeError:  # the check below refuses it
        is_text = False
    is_dots = name in (b"", b".", b"..")
    if (
        is_dots
        or not is_text
        or b"/" in name
        or len(name) > bounds.name_bytes_max
        or any(c < 0x20 or c == 0x7F for c in name)
    ):
        raise malformed(f"this name is not allowed in a directory: {name[:60]!r}")
