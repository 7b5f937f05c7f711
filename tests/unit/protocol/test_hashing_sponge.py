"""Tests the reused keccak state: it gives the same hash as the library's public class.

That holds in every thread, and when a hash is interrupted by another hash.
"""

import threading

import pytest
from Crypto.Hash import keccak
from hypothesis import given
from hypothesis import strategies as st

from quorate_protocol.codec import hashing
from quorate_protocol.codec.hashing import keccak256


def plain(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


@given(st.lists(st.binary(max_size=600), max_size=5))
def test_the_hash_is_keccak(items: list[bytes]) -> None:
    assert [keccak256(item) for item in items] == [plain(item) for item in items]


@pytest.mark.rule("0.6")
def test_the_known_answer() -> None:
    assert (
        keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    )


def test_threads_do_not_share_a_state() -> None:
    wrong: list[bytes] = []

    def work(seed: int) -> None:
        for number in range(2000):
            data = f"{seed} {number}".encode() * 20
            if keccak256(data) != plain(data):
                wrong.append(data)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class InterruptingBytes(bytes):
    """Bytes that hash something else when their length is asked for.

    A finaliser or a signal handler could do the same in the middle of a hash.
    """

    inner: bytes = b""

    def __len__(self) -> int:
        InterruptingBytes.inner = keccak256(b"inner")
        return super().__len__()


def test_a_hash_inside_a_hash_takes_another_sponge() -> None:
    sponges = hashing._Sponges()
    assert sponges.hash(b"first") == plain(b"first")
    held = sponges._free.pop()  # the state as code that runs in the middle of another hash finds it
    held.absorb(held.state, b"half of ", 8)
    assert sponges.hash(b"second") == plain(b"second")
    sponges._free.append(held)
    assert sponges.hash(b"third") == plain(b"third")
    assert len(sponges._free) == 2


def test_bytes_like_objects_are_hashed_too() -> None:
    assert keccak256(bytearray(b"abc")) == plain(b"abc")
    assert keccak256(InterruptingBytes(b"abc")) == plain(b"abc")
    assert InterruptingBytes.inner in (b"", plain(b"inner"))


def test_the_library_has_the_internals_that_the_fast_path_uses() -> None:
    """Otherwise every hash would use the slow path without notice."""
    assert isinstance(getattr(hashing._hash, "__self__", None), hashing._Sponges)
