"""Encodes dag-pb nodes and the UnixFS message inside them, and decodes strangers' nodes strictly
and with bounds.

Sources: https://ipld.io/specs/codecs/dag-pb/spec/ and https://specs.ipfs.tech/unixfs/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from quorate_content.dag.cid import Cid, parse_bytes
from quorate_content.dag.content_limits import Bounds, malformed, oversize
from quorate_content.dag.varint import decode_varint, encode_varint


class Kind(IntEnum):
    """UnixFS type of a node."""

    RAW = 0
    DIRECTORY = 1
    FILE = 2
    METADATA = 3
    SYMLINK = 4
    HAMT = 5


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a node. `tsize` is the writer's claim about the size of the subtree's blocks and
    is not trusted.
    """

    cid: Cid
    name: bytes
    tsize: int


@dataclass(frozen=True, slots=True)
class Node:
    """A decoded node. `sizes` are the declared file bytes below each link. `data` is inline file
    data or a HAMT bit field.
    """

    kind: Kind
    links: tuple[Link, ...]
    data: bytes
    file_size: int | None
    sizes: tuple[int, ...]
    hash_type: int
    fanout: int


DIRECTORY_DATA = b"\x08\x01"
HASH_MURMUR3 = 0x22
FIELDS_MAX = 32  # fields of a UnixFS message other than sizes; eight kinds exist


def encode_link(link: Link) -> bytes:
    """Encodes a link as field 2 of its node."""
    cid = bytes(link.cid)
    body = (
        b"\x0a"
        + encode_varint(len(cid))
        + cid
        + b"\x12"
        + encode_varint(len(link.name))
        + link.name
    )
    body += b"\x18" + encode_varint(link.tsize)
    return b"\x12" + encode_varint(len(body)) + body


def encode_node(links: Sequence[Link], data: bytes) -> bytes:
    return b"".join(map(encode_link, links)) + b"\x0a" + encode_varint(len(data)) + data


def file_data(sizes: Sequence[int]) -> bytes:
    return (
        b"\x08\x02\x18"
        + encode_varint(sum(sizes))
        + b"".join(b"\x20" + encode_varint(size) for size in sizes)
    )


def leaf_block(data: bytes | memoryview) -> bytes:
    """Encodes file data as the dag-pb leaf that Kubo's version 0 profile makes."""
    body = b"\x12" + encode_varint(len(data)) + bytes(data) if len(data) else b""
    return encode_node((), b"\x08\x02" + body + b"\x18" + encode_varint(len(data)))


def hamt_data(bits: int, fanout: int) -> bytes:
    """Encodes the UnixFS message of a HAMT shard. Bit i of `bits` says that bucket i is in use."""
    field = bits.to_bytes((bits.bit_length() + 7) // 8, "big")
    return (
        b"\x08\x05\x12"
        + encode_varint(len(field))
        + field
        + b"\x28"
        + encode_varint(HASH_MURMUR3)
        + b"\x30"
        + encode_varint(fanout)
    )


def decode_node(block: bytes | memoryview, bounds: Bounds) -> Node:
    """Decodes the node in `block`. Raises `Refused` if it is not a UnixFS node or has too many
    links.
    """
    try:
        return _decode_node(bytes(block), bounds)
    except ValueError as error:
        raise malformed(f"not a dag-pb node: {error}") from error


def _decode_node(block: bytes, bounds: Bounds) -> Node:
    links: list[Link] = []
    data: bytes | None = None
    for field, value in _fields(block):
        if field == 2 and isinstance(value, bytes):
            if len(links) == bounds.links_max:
                raise oversize("links of a node", bounds.links_max)
            links.append(_decode_link(value))
        elif field == 1 and isinstance(value, bytes) and data is None:
            data = value
        else:
            raise ValueError(f"unexpected field {field}")
    if data is None:
        raise ValueError("there is no UnixFS data")
    return _decode_unixfs(tuple(links), data, bounds)


def _decode_link(raw: bytes) -> Link:
    cid: Cid | None = None
    name: bytes | None = None
    tsize: int | None = None
    for field, value in _fields(raw):
        if field == 1 and isinstance(value, bytes) and cid is None:
            cid = parse_bytes(value)
        elif field == 2 and isinstance(value, bytes) and name is None:
            name = value
        elif field == 3 and isinstance(value, int) and tsize is None:
            tsize = value
        else:
            raise ValueError(f"unexpected field {field} in a link")
    if cid is None:
        raise ValueError("a link has no hash")
    return Link(cid, name or b"", tsize or 0)


def _decode_unixfs(links: tuple[Link, ...], raw: bytes, bounds: Bounds) -> Node:
    sizes: list[int] = []
    numbers: dict[int, int] = {}
    data = b""
    for count, (field, value) in enumerate(_fields(raw)):
        if count > len(sizes) + FIELDS_MAX:
            # A megabyte of small fields takes a second to decode, and a small directory could link
            # to it 100,000 times.
            raise oversize("fields of a node", FIELDS_MAX)
        if field == 4:
            sizes.extend([value] if isinstance(value, int) else _packed(value))
            if len(sizes) > bounds.links_max:
                raise oversize("sizes of a node", bounds.links_max)
        elif field == 2 and isinstance(value, bytes):
            data = value
        elif field in (1, 3, 5, 6) and isinstance(value, int):
            numbers[field] = value
        # Other fields hold modes and times. Our trees never have them, and they are not restored.
    if 1 not in numbers:
        raise ValueError("there is no UnixFS type")
    return Node(
        kind=Kind(numbers[1]),
        links=links,
        data=data,
        file_size=numbers.get(3),
        sizes=tuple(sizes),
        hash_type=numbers.get(5, 0),
        fanout=numbers.get(6, 0),
    )


def _packed(raw: bytes) -> list[int]:
    values, at = [], 0
    while at < len(raw):
        value, at = decode_varint(raw, at)
        values.append(value)
    return values


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the protobuf fields of `raw`: varints and byte strings only."""
    at = 0
    while at < len(raw):
        tag, at = decode_varint(raw, at)
        if tag & 7 == 2:
            length, at = decode_varint(raw, at)
            if at + length > len(raw):
                raise ValueError("a field is cut short")
            yield tag >> 3, raw[at : at + length]
            at += length
        elif tag & 7 == 0:
            value, at = decode_varint(raw, at)
            yield tag >> 3, value
        else:
            raise ValueError(f"wire type {tag & 7} is not supported")
