"""Writes and reads CARv1 files; the reader verifies while it streams. No input or output of its
own.

Source: https://ipld.io/specs/transport/car/carv1/. The form is deterministic: one root, blocks
depth first, and every visit of a block is written (`dups=y`). So one DAG has exactly one CAR.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from quorate_content.dag.cid import CID_BYTES_MIN, V1_BYTES, Cid, parse_prefix
from quorate_content.dag.content_limits import BadSource, Bounds, TruncatedSource
from quorate_content.dag.varint import VARINT_BYTES_MAX, encode_varint
from quorate_content.dag.walk import Block, DagWalk, ExpectedBlock, TreePath
from quorate_protocol.refusals import Refused

FIRST_BUFFER_BYTES = 64 * 1024
HEADER_BYTES_MAX = 1 << 16
BlockSupply = Callable[[ExpectedBlock], Block | None]
"""Returns a block that is already known for an expected place, or None."""


class ByteReader(Protocol):
    """Anything with a blocking `readinto`."""

    def readinto(self, buffer: memoryview, /) -> int | None: ...


class Progress(Protocol):
    """A callback for the bytes of files verified so far. It may raise to stop."""

    def __call__(self, bytes_done: int, /) -> None:
        """Called after each block."""


def header(root: Cid) -> bytes:
    """Returns the header frame: its length, then dag-cbor {"roots": [root], "version": 1}."""
    link = b"\0" + bytes(root)
    body = b"\xa2\x65roots\x81\xd8\x2a\x58" + bytes((len(link),)) + link + b"\x67version\x01"
    return encode_varint(len(body)) + body


def frame_head(cid: Cid, size: int) -> bytes:
    """Returns what precedes a block's bytes in a CAR: the frame's length and the CID."""
    raw = bytes(cid)
    return encode_varint(len(raw) + size) + raw


def write_car(
    walk: DagWalk,
    root: Cid,
    supply: BlockSupply,
    wanted: Callable[[ExpectedBlock], bool] | None = None,
    trusts_supply: bool = False,
) -> Iterator[Block]:
    """Yields the CAR's bytes: takes each block from `supply`, verifies it and feeds it to the walk.

    Subtrees that are not `wanted` are left out. Raises `BadSource` if the supply no longer has a
    block because the content changed. With `trusts_supply`, blocks are not hashed here: the store
    verified them when they arrived, and readers of the CAR hash them.
    """
    yield header(root)
    while (expected := walk.expected) is not None:
        if wanted is not None and not wanted(expected):
            walk.skip()
            continue
        block = supply(expected)
        if block is None:
            raise BadSource(f"block {expected.cid} is missing from the source")
        walk.feed(block, verified=trusts_supply)
        yield frame_head(expected.cid, len(block))
        yield block


class CarReader:
    """Reads a CAR's frames into one reused buffer. Raises `BadSource` for all that it cannot
    read.
    """

    def __init__(self, source: ByteReader, bounds: Bounds) -> None:
        self._source = source
        self._block_max = bounds.block_bytes_max
        # Starts small, because most CARs are small and each reader has a buffer.
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))

    def header(self) -> bytes:
        """Returns the header's body, of bounded size and version 1 only. Its roots are only a hint
        and are not used.
        """
        length = self._varint(may_end=False)
        assert length is not None
        if length > HEADER_BYTES_MAX:
            raise BadSource(f"the CAR's header has {length} bytes, which is too many")
        self._exact(length)
        body = bytes(self._buffer[:length])
        if b"gversion\x01" not in body:
            raise BadSource("not a CAR of version 1")
        return body

    def next(self) -> tuple[Cid, memoryview] | None:
        """Returns (claimed CID, bytes valid until the next call), or None at a clean end. Does not
        check the hash.
        """
        length = self._varint(may_end=True)
        if length is None:
            return None
        if not CID_BYTES_MIN <= length <= self._block_max + V1_BYTES:
            raise BadSource(
                f"a CAR frame has {length} bytes; a block has at most {self._block_max}"
            )
        self._exact(length)
        try:
            cid, end = parse_prefix(self._buffer[:length])
        except Refused as error:
            raise BadSource(error.detail) from error
        return cid, self._buffer[end:length]

    def at_end(self) -> bool:
        """Returns whether the CAR ends here. Consumes a byte if it does not."""
        return not self._source.readinto(self._buffer[:1])

    def _exact(self, length: int) -> None:
        if length > len(self._buffer):
            self._buffer = memoryview(
                bytearray(max(length, min(2 * len(self._buffer), self._block_max + V1_BYTES)))
            )
        filled = 0
        while filled < length:
            count = self._source.readinto(self._buffer[filled:length])
            if not count:
                raise TruncatedSource(
                    f"the CAR ends inside a block, after {filled} of {length} bytes"
                )
            filled += count

    def _varint(self, may_end: bool) -> int | None:
        value = 0
        for position in range(VARINT_BYTES_MAX):
            if not self._source.readinto(self._buffer[:1]):
                if may_end and position == 0:
                    return None
                raise TruncatedSource("the CAR ends inside a length")
            byte = self._buffer[0]
            value |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                return value
        raise BadSource("a CAR length is longer than 63 bits")


def read_car(
    source: ByteReader,
    walk: DagWalk,
    bounds: Bounds,
    known: BlockSupply | None = None,
    seen: Callable[[Cid], bool] | None = None,
    progress: Progress | None = None,
    within: TreePath = (),
) -> None:
    """Feeds a walk from a CAR until it is complete, or only until the entry at the path `within`
    is. The CAR may omit blocks that `known` has (`dups=n`, resume).

    `seen(cid)` says that a block was verified before and may be dropped when it comes again. Raises
    `BadSource` if the CAR ends early, or holds a block that was neither expected nor seen.
    Completeness decides, not the HTTP status.
    """
    reader = CarReader(source, bounds)
    reader.header()
    skipped = 0
    while is_within(walk.expected, within):
        frame = reader.next()
        if frame is None:
            _finish(walk, known, within)
            return
        cid, block = frame[0], frame[1]
        if not _advance(walk, cid, known, within):
            skipped += len(block) + V1_BYTES
            is_known = cid.inline is not None or (seen is not None and seen(cid))
            if not is_known or skipped > bounds.bytes_max + bounds.node_bytes_max:
                raise BadSource(f"block {cid} was not requested at this place")
            continue
        walk.feed(block)
        if progress is not None:
            progress(walk.bytes_done)


def read_exact_car(source: ByteReader, root: Cid, walk: DagWalk, bounds: Bounds) -> None:
    """Like `read_car`, but accepts only the one deterministic CAR of `root`: exact header, every
    block, nothing after.
    """
    reader = CarReader(source, bounds)
    body = reader.header()
    if encode_varint(len(body)) + body != header(root):
        raise BadSource("the CAR's header is not the canonical header of that root")
    while (expected := walk.expected) is not None:
        frame = reader.next()
        if frame is None or frame[0] != expected.cid:
            raise BadSource(f"block {expected.cid} is missing")
        walk.feed(frame[1])
    if not reader.at_end():
        raise BadSource("the CAR has bytes after its last block")


def is_within(expected: ExpectedBlock | None, path: TreePath) -> bool:
    """Returns whether a walk that expects this block is still inside the entry at `path`."""
    return expected is not None and expected.path[: len(path)] == path


def _finish(walk: DagWalk, known: BlockSupply | None, within: TreePath) -> None:
    while (expected := walk.expected) is not None and is_within(expected, within):
        block = known(expected) if known is not None else None
        if block is None:
            raise TruncatedSource(f"the CAR ends before block {expected.cid}")
        walk.feed(block)


def _advance(walk: DagWalk, cid: Cid, known: BlockSupply | None, within: TreePath) -> bool:
    """Feeds known blocks until the walk expects block `cid`. Returns False if it expects another
    block that is not known. The walk can end without `cid`; then `cid` was not expected here.
    """
    while (expected := walk.expected) is not None and is_within(expected, within):
        if expected.cid.same_block(cid):
            return True
        block = known(expected) if known is not None else None
        if block is None:
            return False
        walk.feed(block)
    return False
