"""Content identifiers: CIDv0 and CIDv1 with sha2-256 and the codecs raw and dag-pb.

These have one fixed binary form in which every varint is one byte. So parsing compares bytes, and
no non-minimal form passes. Text is lower-case base32 for v1 and base58 for v0. An identity CID
carries its block in itself: it is read, served and never fetched. Quorate never makes one. Source:
https://github.com/multiformats/cid.
"""

import base64
import binascii
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256

from quorate_content.dag.content_limits import malformed
from quorate_content.dag.varint import decode_varint, encode_varint
from quorate_protocol.units import Hash32

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BASE58_VALUE = {letter: value for value, letter in enumerate(BASE58)}
SHA256_HEAD = b"\x12\x20"
IDENTITY = 0x00
INLINE_BYTES_MAX = 128  # of a block inside its CID; Kubo has the same limit
V0_BYTES, V1_BYTES = 34, 36
CID_BYTES_MIN = 4  # of an identity CID without data
TEXT_MAX = 512


class Codec(IntEnum):
    """The kind of block: plain bytes, or a dag-pb node."""

    RAW = 0x55
    DAG_PB = 0x70


@dataclass(frozen=True, slots=True)
class Cid:
    """One content identifier. `digest` is the sha2-256 of the block. Version 0 is always dag-pb.
    `inline` is the block itself if this is an identity CID, else None.
    """

    version: int
    codec: Codec
    digest: Hash32
    inline: bytes | None = None

    def __bytes__(self) -> bytes:
        """Returns the binary form: 34 bytes for v0, 36 for v1, 4 or more for an identity CID."""
        if self.inline is not None:
            head = bytes((1, self.codec, IDENTITY)) + encode_varint(len(self.inline))
            return head + self.inline
        return (
            SHA256_HEAD + self.digest
            if self.version == 0
            else bytes((1, self.codec)) + SHA256_HEAD + self.digest
        )

    def __str__(self) -> str:
        """Returns the canonical text: base58 for v0, lower-case base32 with prefix `b` for v1."""
        return _text_of(self)

    def as_v1(self) -> "Cid":
        """Returns the same block's CIDv1, under which the store keeps everything."""
        return self if self.version == 1 else Cid(1, self.codec, self.digest)

    def same_block(self, other: "Cid") -> bool:
        """Returns whether both name the same block. A v0 link may arrive as v1 dag-pb."""
        return self.digest == other.digest and self.codec == other.codec


@lru_cache(maxsize=4096)  # a gateway writes the text of one CID several times for a request
def _text_of(cid: Cid) -> str:
    if cid.version == 0:
        return _base58(bytes(cid))
    return "b" + base64.b32encode(bytes(cid)).decode().lower().rstrip("=")


def parse(text: str) -> Cid:
    """Returns the CID whose canonical text is `text`; else raises `Refused(MALFORMED)`. Does no
    input or output.
    """
    if len(text) > TEXT_MAX:
        raise malformed(f"the text is too long for a CID: at most {TEXT_MAX} characters")
    if len(text) == 46 and text.startswith("Qm"):
        cid = parse_bytes(_from_base58(text))
    elif text.startswith("b") and text.isascii() and text == text.lower():
        try:
            raw = base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
        except binascii.Error as error:
            raise malformed(f"the CID is not valid base32: {text[:80]!r}") from error
        cid = parse_bytes(raw)
    else:
        raise malformed(
            f"not a CID in base32 lower case (b...) or version 0 (Qm...): {text[:80]!r}"
        )
    if str(cid) != text:
        raise malformed(f"not the canonical text of a CID: {text[:80]!r}")
    return cid


def parse_bytes(raw: bytes) -> Cid:
    cid, end = parse_prefix(raw)
    if end != len(raw):
        raise malformed(f"{len(raw) - end} unexpected bytes after the CID")
    return cid


def parse_prefix(raw: bytes | memoryview) -> tuple[Cid, int]:
    """Returns (CID at the start of `raw`, its length in bytes)."""
    head = bytes(raw[:4])
    if head[:2] == SHA256_HEAD:
        if len(raw) < V0_BYTES:
            raise malformed("the CID is too short")
        return Cid(0, Codec.DAG_PB, Hash32(bytes(raw[2:V0_BYTES]))), V0_BYTES
    if (
        len(head) < 4
        or head[0] != 1
        or head[1] not in (Codec.RAW, Codec.DAG_PB)
        or (head[2:] != SHA256_HEAD and head[2] != IDENTITY)
    ):
        raise malformed(
            f"only CIDs of raw and dag-pb blocks by sha2-256 are supported, not {head.hex()}"
        )
    if head[2] == IDENTITY:
        return _parse_inline(raw, Codec(head[1]))
    if len(raw) < V1_BYTES:
        raise malformed("the CID is too short")
    return Cid(1, Codec(head[1]), Hash32(bytes(raw[4:V1_BYTES]))), V1_BYTES


def _parse_inline(raw: bytes | memoryview, codec: Codec) -> tuple[Cid, int]:
    try:
        length, start = decode_varint(raw, 3)
    except ValueError as error:
        raise malformed(f"the identity CID's length: {error}") from error
    if length > INLINE_BYTES_MAX:
        raise malformed(f"an identity CID carries {length} bytes; at most {INLINE_BYTES_MAX}")
    if len(raw) < start + length:
        raise malformed("the CID is too short")
    return inline_cid(bytes(raw[start : start + length]), codec), start + length


def inline_cid(block: bytes, codec: Codec = Codec.RAW) -> Cid:
    """Returns the identity CID that carries `block` in itself: at most `INLINE_BYTES_MAX` bytes."""
    assert len(block) <= INLINE_BYTES_MAX
    return Cid(1, codec, Hash32(sha256(block).digest()), block)


def typed_cid(text: str) -> Cid:
    """Returns the CIDv1 of what a person typed: a CID of version 1, or of version 0 (`Qm...`).
    Raises `Refused(MALFORMED)`.
    """
    return parse(text.strip()).as_v1()


def raw_cid(data: bytes | memoryview) -> Cid:
    """Returns the CIDv1 of `data` as one raw block. Documents (job spec, offer, receipt) use this
    form.
    """
    return Cid(1, Codec.RAW, Hash32(sha256(data).digest()))


EMPTY = raw_cid(b"")  # of an empty file


def node_cid(block: bytes, version: int = 1) -> Cid:
    return Cid(version, Codec.DAG_PB, Hash32(sha256(block).digest()))


def from_digest(digest: bytes, codec: Codec = Codec.RAW) -> Cid:
    """Returns the CIDv1 of a sha2-256 digest from a message. Output trees are `Codec.DAG_PB`,
    documents `Codec.RAW`.
    """
    if len(digest) != 32:
        raise malformed(f"a digest has 32 bytes, not {len(digest)}")
    return Cid(1, codec, Hash32(bytes(digest)))


def _base58(raw: bytes) -> str:
    # Only 34-byte multihashes come here. Their first byte is 0x12, so base58's rule for leading
    # zeros is not needed.
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return text


def _from_base58(text: str) -> bytes:
    number = 0
    for letter in text:
        value = BASE58_VALUE.get(letter)
        if value is None:
            raise malformed(f"the CID is not valid base58: {text[:80]!r}")
        number = number * 58 + value
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
