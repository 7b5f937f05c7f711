"""Hash functions: keccak256, SHA-256, and H(...) of PROTOCOL.

H(...) is keccak256 over the ABI encoding of a tuple, with 32-byte words, and strings as dynamic
members. Vyper's `keccak256(abi_encode(...))` gives the same hash.
"""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256 as _sha256

from Crypto.Util._file_system import pycryptodome_filename

from quorate_protocol.units import Hash32

_STATE, _SIZE, _BYTE = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ubyte
_WIDTH, _PADDING = _SIZE(32), _BYTE(1)


@cache
def _library() -> ctypes.PyDLL:
    """The C functions that pycryptodome's public class wraps. Each returns 0 or an error code.

    They are called with the interpreter's lock held. The public class releases the lock four times
    for a hash that takes a microsecond. If another thread runs, each release means a wait.
    """
    library = ctypes.PyDLL(pycryptodome_filename(["Crypto", "Hash"], "_keccak.abi3.so"))
    library.keccak_init.argtypes = [_STATE, _SIZE, _BYTE]
    library.keccak_reset.argtypes = [_STATE]
    library.keccak_absorb.argtypes = [_STATE, ctypes.c_char_p, _SIZE]
    library.keccak_digest.argtypes = [_STATE, _STATE, _SIZE, _BYTE]
    return library


class _Sponge:
    """The state of a hash and a buffer for its digest. They are reused, because to make them costs
    more than to hash.
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
    """The sponges that are free. Their number is the most that ever hashed at the same time.

    A sponge is taken out while it is in use. So another thread, a signal handler or a finaliser
    that hashes in between takes another one. If an exception interrupts a hash, its sponge is not
    put back.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[_Sponge] = []

    def hash(self, data: bytes) -> bytes:
        if type(data) is not bytes:
            return _keccak_by_library(data)
        try:
            sponge = self._free.pop()
        except IndexError:
            # All are in use, or there is none yet.
            sponge = _Sponge()
        failed = sponge.reset(sponge.state) or sponge.absorb(sponge.state, data, len(data))
        failed = failed or sponge.digest(sponge.state, sponge.out, _WIDTH, _PADDING)
        assert not failed, f"keccak: error {failed}"
        digest: bytes = sponge.buffer.raw
        self._free.append(sponge)
        return digest


def _keccak_by_library(data: bytes) -> bytes:
    # Its import takes 50 ms of parsing C declarations, and only a fallback needs it.
    from Crypto.Hash import keccak

    return keccak.new(digest_bits=256, data=data).digest()


_KNOWN_HASHES = (
    (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
    (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
    (bytes(200), "e1bb54e1bc3af48d01e5dbfc81015c98152a574f6428c6948aa4837c9c0baad9"),
    (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
)


def _fastest() -> Callable[[bytes], bytes]:
    """The fastest keccak256 that works: sponges, or else the library's public class. Sponges need C
    functions that another version of the library may not have.
    """
    try:
        sponges = _Sponges()
        is_good = all(sponges.hash(data).hex() == digest for data, digest in _KNOWN_HASHES)
    except (AttributeError, TypeError, ValueError, OSError, AssertionError):
        # The library has another version or another build.
        return _keccak_by_library
    return sponges.hash if is_good else _keccak_by_library


_hash = _fastest()


def keccak256(data: bytes) -> Hash32:
    """The 32-byte keccak256 of some bytes, as in the EVM; it is not SHA-3."""
    return Hash32(_hash(data))


EMPTY_HASH = keccak256(b"")


def sha256(data: bytes) -> Hash32:
    return Hash32(_sha256(data).digest())


def word(value: int | bytes) -> bytes:
    """The 32-byte ABI word of a static value. Unsigned integers, bools and 20-byte addresses get
    zeros on the left; 32 bytes stay as they are.
    """
    if isinstance(value, int):
        return value.to_bytes(32, "big")
    if len(value) == 32:
        return value
    assert len(value) == 20, f"no ABI word of {len(value)} bytes"
    return bytes(12) + value


def abi_encode(*values: int | bytes | str) -> bytes:
    """ABI encoding of a tuple of words and strings. Strings are dynamic members, in UTF-8."""
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
    """The encoding of a string; results are kept, because most strings are fixed labels."""
    raw = value.encode()
    return word(len(raw)) + raw + bytes(-len(raw) % 32)


def hash_tuple(*values: int | bytes | str) -> Hash32:
    """H(values...) of PROTOCOL: keccak256 of the ABI encoding of the values as a tuple."""
    return keccak256(abi_encode(*values))


def hash_list(digests: tuple[Hash32, ...]) -> Hash32:
    """H(ordered digests) of PROTOCOL: keccak256 of all digests, joined in their order."""
    return keccak256(b"".join(digests)) if digests else EMPTY_HASH
