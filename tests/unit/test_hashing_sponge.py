"""The kept sponge gives what the library's public class gives, in every thread and after whatever broke into it."""

import threading

from Crypto.Hash import keccak
from hypothesis import given
from hypothesis import strategies as st

from quorate_protocol import hashing
from quorate_protocol.hashing import keccak256


def plain(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


@given(st.lists(st.binary(max_size=600), max_size=5))
def test_it_is_keccak(items: list[bytes]) -> None:
    assert [keccak256(item) for item in items] == [plain(item) for item in items]


def test_the_known_answer() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


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


def test_a_hash_inside_a_hash_and_after_one_that_was_broken_off() -> None:
    sponge = hashing._Sponge()
    assert sponge.hash(b"first") == plain(b"first")
    sponge.is_busy = True  # as somebody who runs in the middle of another hash finds it
    assert sponge.hash(b"second") == plain(b"second")
    assert sponge.is_busy
