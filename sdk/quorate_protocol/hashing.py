"""Hashes. The only module of the rules that imports anything beyond the standard library (keccak).

H(...) of PROTOCOL is keccak256 over the ABI encoding of a tuple: 32-byte words, strings as dynamic members, exactly what
Vyper's `keccak256(abi_encode(...))` computes.
"""

from collections.abc import Callable
from hashlib import sha256 as _sha256
from threading import local
from typing import Protocol

from Crypto.Hash import keccak as _keccak
from Crypto.Util._raw_api import VoidPointer, create_string_buffer, get_raw_buffer

from quorate_protocol.units import Hash32


class _Library(Protocol):
    """Functions of pycryptodome's C library, which its public class wraps; each returns 0 or an error."""

    def keccak_init(self, state: object, capacity_bytes: int, rounds: int) -> int: ...

    def keccak_reset(self, state: object) -> int: ...

    def keccak_absorb(self, state: object, data: bytes, length: int) -> int: ...

    def keccak_digest(self, state: object, out: object, length: int, padding: int) -> int: ...


_LIBRARY: _Library = getattr(_keccak, "_raw_keccak_lib", None)  # type: ignore[assignment]  # see `_fastest`


class _Sponge(local):
    """One state for each thread, used again and again: to make one costs more than the hash.

    `is_busy` stays set when a hash is broken off between two calls (a keyboard interrupt) or entered again by something that
    runs between them (a signal handler, a finaliser): from then on this thread makes a state for each hash, as everybody else does.
    """

    state: object = None
    out: object = None
    is_busy: bool = False

    def hash(self, data: bytes) -> bytes:
        """keccak256."""
        if self.is_busy or type(data) is not bytes:
            return _keccak_anew(data)
        self.is_busy = True
        if self.state is None:
            self._make()
        length = len(data)
        failed = _LIBRARY.keccak_reset(self.state) or _LIBRARY.keccak_absorb(self.state, data, length)
        failed = failed or _LIBRARY.keccak_digest(self.state, self.out, 32, 1)
        assert not failed, f"keccak: error {failed}"
        digest = bytes(get_raw_buffer(self.out))
        self.is_busy = False
        return digest

    def _make(self) -> None:
        state = VoidPointer()
        assert _LIBRARY.keccak_init(state.address_of(), 64, 24) == 0, "no memory for a hash"
        self.state, self.out = state.get(), create_string_buffer(32)  # type: ignore[call-arg]


def _keccak_anew(data: bytes) -> bytes:
    return _keccak.new(digest_bits=256, data=data).digest()


def _fastest() -> Callable[[bytes], bytes]:
    """A sponge; the library's public class where its functions are not, or no longer, those that are known here."""
    sponge = _Sponge()
    try:
        is_good = all(sponge.hash(data) == _keccak_anew(data) and not sponge.is_busy for data in (b"", b"abc", bytes(200), b""))
    except (AttributeError, TypeError, ValueError):
        # Another version, or one built without cffi.
        is_good = False
    return sponge.hash if is_good else _keccak_anew


_hash = _fastest()


def keccak256(data: bytes) -> Hash32:
    """32-byte keccak256 (the EVM's, not SHA-3)."""
    return Hash32(_hash(data))


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
