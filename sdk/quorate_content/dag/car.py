"""CARv1: writer frames and the streaming verified reader. Pure: bytes come from a `ByteReader`,
go into a `Walk`.

Source: https://ipld.io/specs/transport/car/carv1/. Deterministic form: one root, blocks depth
first, every visit of a block written (`dups=y`), so one DAG has exactly one CAR.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from quorate_content.content_limits import BadSource, Bounds, Cut
from quorate_content.dag.cid import V0_BYTES, V1_BYTES, Cid, parse_prefix
from quorate_content.dag.varint import VARINT_BYTES_MAX, encode_varint
from quorate_content.dag.walk import Block, Expected, Walk
from quorate_protocol.refusals import Refused

FIRST_BUFFER_BYTES = 64 * 1024
HEADER_BYTES_MAX = 1 << 16
Supply = Callable[[Expected], Block | None]
"""The block somebody already has for an expected place, or None."""


class ByteReader(Protocol):
    """Anything with a blocking `readinto`; 0 is the end."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fills some of the buffer; how much."""


class Progress(Protocol):
    """Told the bytes of file verified so far; raises to stop."""

    def __call__(self, bytes_done: int, /) -> None:
        """After each block."""


def header(root: Cid) -> bytes:
    """Header frame: length, then dag-cbor {"roots": [root], "version": 1}."""
    link = b"\0" + bytes(root)
    body = b"\xa2\x65roots\x81\xd8\x2a\x58" + bytes((len(link),)) + link + b"\x67version\x01"
    return encode_varint(len(body)) + body


def frame_head(cid: Cid, size: int) -> bytes:
    """What stands before a block's bytes: length and CID."""
    raw = bytes(cid)
    return encode_varint(len(raw) + size) + raw


def write_car(
    walk: Walk,
    root: Cid,
    supply: Supply,
    wanted: Callable[[Expected], bool] | None = None,
    trusts_supply: bool = False,
) -> Iterator[Block]:
    """The CAR's bytes in pieces: each block is taken from `supply`, verified and fed to the
    walk. Unwanted subtrees are left out.

    `BadSource` when the supply no longer has a block: the content was changed or removed
    meanwhile. `trusts_supply` leaves the hashing of blocks to whoever reads the CAR; for objects
    of the store, which were verified when they came.
    """
    yield header(root)
    while (expected := walk.expected) is not None:
        if wanted is not None and not wanted(expected):
            walk.skip()
            continue
        block = supply(expected)
        if block is None:
            raise BadSource(f"block {expected.cid} is not here")
        walk.feed(block, verified=trusts_supply)
        yield frame_head(expected.cid, len(block))
        yield block


class CarReader:
    """Frames of a CAR in one reused buffer; everything it cannot read is `BadSource`."""

    def __init__(self, source: ByteReader, bounds: Bounds) -> None:
        self._source = source
        self._block_max = bounds.block_bytes_max
        self._buffer = memoryview(
            bytearray(FIRST_BUFFER_BYTES)
        )  # most CARs are small, and each of them has one

    def header(self) -> bytes:
        """The header's body, bounded; version 1 only. Its roots are a hint and are not believed."""
        length = self._varint(may_end=False)
        assert length is not None
        if length > HEADER_BYTES_MAX:
            raise BadSource(f"a CAR header of {length} bytes")
        self._exact(length)
        body = bytes(self._buffer[:length])
        if b"gversion\x01" not in body:
            raise BadSource("not a CAR of version 1")
        return body

    def next(self) -> tuple[Cid, memoryview] | None:
        """(CID claimed, bytes, valid until the next call), or None at a clean end. The hash is
        not checked here.
        """
        length = self._varint(may_end=True)
        if length is None:
            return None
        if not V0_BYTES <= length <= self._block_max + V1_BYTES:
            raise BadSource(f"a CAR frame of {length} bytes; a block has at most {self._block_max}")
        self._exact(length)
        try:
            cid, end = parse_prefix(self._buffer[:length])
        except Refused as error:
            raise BadSource(error.detail) from error
        return cid, self._buffer[end:length]

    def at_end(self) -> bool:
        """Whether nothing follows; consumes a byte otherwise."""
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
                raise Cut(f"the CAR is cut: {filled} of {length} bytes of a block")
            filled += count

    def _varint(self, may_end: bool) -> int | None:
        value = 0
        for position in range(VARINT_BYTES_MAX):
            if not self._source.readinto(self._buffer[:1]):
                if may_end and position == 0:
                    return None
                raise Cut("the CAR is cut in a length")
            byte = self._buffer[0]
            value |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                return value
        raise BadSource("a CAR length is longer than 63 bits")


def read_car(
    source: ByteReader,
    walk: Walk,
    bounds: Bounds,
    known: Supply | None = None,
    seen: Callable[[Cid], bool] | None = None,
    progress: Progress | None = None,
) -> None:
    """Feeds a walk from a CAR until it is complete. Blocks may be repeated or left out where
    `known` has them (`dups=n`, resume).

    `seen(cid)`: a block that was verified before and may be dropped when it comes again.
    `BadSource` when the CAR ends early, or has a block that was neither expected nor seen:
    completeness, not the HTTP status, is what counts.
    """
    reader = CarReader(source, bounds)
    reader.header()
    skipped = 0
    while walk.expected is not None:
        frame = reader.next()
        if frame is None:
            _finish(walk, known)
            return
        cid, block = frame[0], frame[1]
        if not _advance(walk, cid, known):
            skipped += len(block) + V1_BYTES
            if seen is None or not seen(cid) or skipped > bounds.bytes_max + bounds.node_bytes_max:
                raise BadSource(f"block {cid} was not asked for here")
            continue
        walk.feed(block)
        if progress is not None:
            progress(walk.bytes_done)


def read_exact_car(source: ByteReader, root: Cid, walk: Walk, bounds: Bounds) -> None:
    """Like `read_car`, but only for the one deterministic CAR of `root`: exact header, no block
    left out, nothing after it.
    """
    reader = CarReader(source, bounds)
    body = reader.header()
    if encode_varint(len(body)) + body != header(root):
        raise BadSource("not the canonical header of that root")
    while (expected := walk.expected) is not None:
        frame = reader.next()
        if frame is None or frame[0] != expected.cid:
            raise BadSource(f"block {expected.cid} is missing")
        walk.feed(frame[1])
    if not reader.at_end():
        raise BadSource("bytes after the last block")


def _finish(walk: Walk, known: Supply | None) -> None:
    """After the CAR's end only repeated blocks may be missing."""
    while (expected := walk.expected) is not None:
        block = known(expected) if known is not None else None
        if block is None:
            raise Cut(f"the CAR ends before block {expected.cid}")
        walk.feed(block)


def _advance(walk: Walk, cid: Cid, known: Supply | None) -> bool:
    """Brings the walk to block `cid`, filling in what is known; False when the walk waits for
    something else that is not known.

    A known prefix may be consumed without `cid` ever coming up; then `cid` itself was not
    expected here.
    """
    while (expected := walk.expected) is not None:
        if expected.cid.same_block(cid):
            return True
        block = known(expected) if known is not None else None
        if block is None:
            return False
        walk.feed(block)
    return False
