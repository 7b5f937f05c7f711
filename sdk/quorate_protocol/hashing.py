"""Hashes. The only module of the rules that imports anything beyond the standard library (keccak).

H(...) of PROTOCOL is keccak256 over the ABI encoding of a tuple: 32-byte words, strings as dynamic members, exactly what
Vyper's `keccak256(abi_encode(...))` computes.
"""

from hashlib import sha256 as _sha256

from Crypto.Hash import keccak as _keccak

from quorate_protocol.units import Hash32


def keccak256(data: bytes) -> Hash32:
    """32-byte keccak256 (the EVM's, not SHA-3)."""
    return Hash32(_keccak.new(digest_bits=256, data=data).digest())


def sha256(data: bytes) -> Hash32:
    """32-byte SHA-256."""
    return Hash32(_sha256(data).digest())


def word(value: int | bytes) -> bytes:
    """One static ABI word: unsigned integers and bools right-aligned, 20-byte addresses left-padded, 32-byte strings as they are."""
    if isinstance(value, int):
        return int(value).to_bytes(32, "big")
    if len(value) == 32:
        return value
    assert len(value) == 20, f"no ABI word of {len(value)} bytes"
    return bytes(12) + value


def abi_encode(*values: int | bytes | str) -> bytes:
    """ABI encoding of a tuple of words and strings (strings are UTF-8 and dynamic)."""
    heads: list[bytes] = []
    tails: list[bytes] = []
    offset = 32 * len(values)
    for value in values:
        if isinstance(value, str):
            raw = value.encode()
            tail = word(len(raw)) + raw + bytes(-len(raw) % 32)
            heads.append(word(offset))
            tails.append(tail)
            offset += len(tail)
        else:
            heads.append(word(value))
    return b"".join(heads + tails)


def hash_tuple(*values: int | bytes | str) -> Hash32:
    """H(values...) of PROTOCOL: keccak256 of the ABI encoding of the tuple."""
    return keccak256(abi_encode(*values))


def hash_list(digests: tuple[Hash32, ...]) -> Hash32:
    """H(ordered digests): keccak256 of the digests one after the other."""
    return keccak256(b"".join(digests))
