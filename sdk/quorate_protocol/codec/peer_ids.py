"""The peer ids of libp2p for Ed25519 keys.

A peer id is the identity multihash of the key's protobuf encoding: 6 constant bytes and the 32
bytes of the key. Source: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md.
"""

from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

HEAD = bytes.fromhex("002408011220")  # identity multihash of 36 bytes; key type Ed25519, 32 bytes
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
TEXT_MAX = 64  # characters; a peer id of this kind has 52


def peer_id_bytes(peer_key: Hash32) -> bytes:
    """The 38 bytes of the peer id of an Ed25519 public key."""
    assert len(peer_key) == 32, "an Ed25519 public key has 32 bytes"
    return HEAD + peer_key


def peer_id(peer_key: Hash32) -> str:
    """The text of the peer id of an Ed25519 public key, in base58: `12D3Koo...`."""
    raw = peer_id_bytes(peer_key)
    number, digits = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = ALPHABET[digit] + digits
    return ALPHABET[0] * (len(raw) - len(raw.lstrip(b"\0"))) + digits


def peer_key_of_bytes(raw: bytes) -> Hash32:
    """The public key in the bytes of a peer id. Refused(UNSUPPORTED) for other kinds of keys."""
    if len(raw) != 38 or not raw.startswith(HEAD):
        raise Refused(Code.UNSUPPORTED, "the peer id is not the one of an Ed25519 key")
    return Hash32(raw[len(HEAD) :])


def peer_key(text: str) -> Hash32:
    """The public key in the text of a peer id. Refused(MALFORMED | UNSUPPORTED) otherwise."""
    number = 0
    if not 0 < len(text) <= TEXT_MAX or any(digit not in ALPHABET for digit in text):
        raise Refused(Code.MALFORMED, f"peer id: {text[:TEXT_MAX]!r} is not base58")
    for digit in text:
        number = number * 58 + ALPHABET.index(digit)
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    return peer_key_of_bytes(bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big"))
