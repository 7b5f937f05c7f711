"""Hashes. The only module of the rules that imports anything beyond the standard library
(keccak).

H(...) of PROTOCOL is keccak256 over the ABI encoding of a tuple: 32-byte words, strings as
dynamic members, exactly what Vyper's `keccak256(abi_encode(...))` computes.
"""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256 as _sha256

from Crypto.Hash import keccak as _keccak
from Crypto.Util._file_system import pycryptodome_filename

from quorate_protocol.units import Hash32

_STATE, _SIZE, _BYTE = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ubyte
_WIDTH, _PADDING = _SIZE(32), _BYTE(1)


@cache
def _library() -> ctypes.PyDLL:
    """Functions of pycryptodome's C library, which its public class wraps; each returns 0 or an
    error.

    Called with the interpreter's lock held: the class lets go of it in each of its four calls
    for a hash of a microsecond, and whenever another thread is at work it then waits for that
    thread to hand it back.
    """
    library = ctypes.PyDLL(pycryptodome_filename(["Crypto", "Hash"], "_keccak.abi3.so"))
    library.keccak_init.argtypes = [_STATE, _SIZE, _BYTE]
    library.keccak_reset.argtypes = [_STATE]
    library.keccak_absorb.argtypes = [_STATE, ctypes.c_char_p, _SIZE]
    library.keccak_digest.argtypes = [_STATE, _STATE, _SIZE, _BYTE]
    return library


class _Sponge:
    """A state and room for a digest, used again and again: to make them costs more than the
    hash.
    """

    __slots__ = ("_library", "absorb", "buffer", "digest", "out", "reset", "state")

    def __init__(self) -> None:
        self._library = library = _library()
        self.reset, self.absorb, self.digest = (
            library.keccak_reset,
            library.keccak_absorb,
            library.keccak_digest,
        )
        self.state, self.buffer = _STATE(), ctypes.create_string_buffer(32)
        self.out = _STATE(ctypes.addressof(self.buffer))
        assert library.keccak_init(ctypes.byref(self.state), 64, 24) == 0, "no memory for a hash"


class _Sponges:
    """Sponges that nobody uses at the moment: one for each hash that ever ran at the same time
    as others, so one a thread.

    Taken out while it is used, so a thread, a signal handler or a finaliser that hashes in
    between takes another; one whose hash was broken off (a keyboard interrupt) is not put back.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[_Sponge] = []

    def hash(self, data: bytes) -> bytes:
        """keccak256."""
        if type(data) is not bytes:
            return _keccak_anew(data)
        try:
            sponge = self._free.pop()
        except IndexError:
            # All are in use, or this is the first.
            sponge = _Sponge()
        failed = sponge.reset(sponge.state) or sponge.absorb(sponge.state, data, len(data))
        failed = failed or sponge.digest(sponge.state, sponge.out, _WIDTH, _PADDING)
        assert not failed, f"keccak: error {failed}"
        digest: bytes = sponge.buffer.raw
        self._free.append(sponge)
        return digest


def _keccak_anew(data: bytes) -> bytes:
    return _keccak.new(digest_bits=256, data=data).digest()


def _fastest() -> Callable[[bytes], bytes]:
    """Sponges; the library's public class where its functions are not, or no longer, those that
    are known here.
    """
    try:
        sponges = _Sponges()
        is_good = all(
            sponges.hash(data) == _keccak_anew(data) for data in (b"", b"abc", bytes(200), b"")
        )
    except (AttributeError, TypeError, ValueError, OSError, AssertionError):
        # Another version, or one built otherwise.
        return _keccak_anew
    return sponges.hash if is_good else _keccak_anew


_hash = _fastest()


def keccak256(data: bytes) -> Hash32:
    """32-byte keccak256 (the EVM's, not SHA-3)."""
    return Hash32(_hash(data))


EMPTY_HASH = keccak256(b"")


def sha256(data: bytes) -> Hash32:
    """32-byte SHA-256."""
    return Hash32(_sha256(data).digest())


def word(value: int | bytes) -> bytes:
    """One static ABI word: unsigned integers and bools right-aligned, 20-byte addresses
    left-padded, 32-byte strings as they are.
    """
    if isinstance(value, int):
        return value.to_bytes(32, "big")
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
        if isinstance(value, bytes) and len(value) == 32:
            heads.append(value)
        elif isinstance(value, str):
            tail = _tail(value)
            heads.append(offset.to_bytes(32, "big"))
            tails.append(tail)
            offset += len(tail)
        else:
            heads.append(word(value))
    return b"".join(heads + tails)


@lru_cache(maxsize=256)
def _tail(value: str) -> bytes:
    """Kept, because most strings are the labels of what is hashed."""
    raw = value.encode()
    return word(len(raw)) + raw + bytes(-len(raw) % 32)


def hash_tuple(*values: int | bytes | str) -> Hash32:
    """H(values...) of PROTOCOL: keccak256 of the ABI encoding of the tuple."""
    return keccak256(abi_encode(*values))


def hash_list(digests: tuple[Hash32, ...]) -> Hash32:
    """H(ordered digests): keccak256 of the digests one after the other."""
    return keccak256(b"".join(digests)) if digests else EMPTY_HASH
