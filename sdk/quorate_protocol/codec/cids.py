"""Content ids (CIDs) as documents name them: CIDv1 in lower-case base32, over sha2-256.

Their codec is raw or dag-pb. `quorate_content` builds and reads the content itself.
"""

from base64 import b32decode
from functools import lru_cache

from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

RAW = 0x55
DAG_PB = 0x70
_SHA2_256 = bytes([0x12, 0x20])
_TEXT_LENGTH = 59
_SIGNS = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [first + second for first in _SIGNS for second in _SIGNS]
_SHIFTS = range(280, -10, -10)  # 36 bytes are 288 bits, and two more of zero make 29 pairs of signs


def cid_text(codec: int, digest: Hash32) -> str:
    """Text of a CIDv1 over a sha2-256 digest."""
    number = int.from_bytes(bytes([1, codec]) + _SHA2_256 + digest, "big") << 2
    return "b" + "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def cid_parts(text: str, field: str = "cid") -> tuple[int, Hash32]:
    """Raises `Refused(MALFORMED)` with the field's name for any but the canonical text of a CID."""
    return _parts(text, field)


@lru_cache(maxsize=1024)
def _parts(text: str, field: str) -> tuple[int, Hash32]:
    """Does the work of `cid_parts`. Results are cached, because many jobs name the same image."""
    try:
        raw = (
            b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
            if len(text) == _TEXT_LENGTH and text[0] == "b"
            else b""
        )
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{field}: {text[:80]!r} is not base32") from error
    if (
        len(raw) != 36
        or raw[0] != 1
        or raw[1] not in (RAW, DAG_PB)
        or raw[2:4] != _SHA2_256
        or cid_text(raw[1], Hash32(raw[4:])) != text
    ):
        raise Refused(
            Code.MALFORMED,
            f"{field}: {text[:80]!r} is not a CIDv1 (base32, sha2-256, raw or dag-pb)",
        )
    return raw[1], Hash32(raw[4:])


def document_cid(data: bytes) -> str:
    """CID of a canonical document (v1, raw, sha2-256)."""
    return cid_text(RAW, sha256(data))
