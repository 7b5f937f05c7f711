"""The arithmetic equals plain Python's and published vectors, and the check finds wrong tiles."""

import random

import numpy as np
import pytest

from quorate_attestation.arithmetic import pages
from quorate_attestation.arithmetic.product_check import PRIME, are_right, prepare
from quorate_attestation.arithmetic.word_stream import fingerprints, rows, words_from
from quorate_attestation.parameters import TILE

MASK = (1 << 64) - 1
ORDER = 512
RIGHT, LEFT, SECRET = 22, 11, 33


def scalar_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_words_are_those_of_splitmix64() -> None:
    """The first two are the published outputs for seed 0; the generator adds before it mixes."""
    first = words_from(0, 1, 2)
    assert [int(word) for word in first] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    many = words_from(2**63 + 5, 100, 50)
    expected = [scalar_mix(2**63 + 5 + i * 0x9E3779B97F4A7C15 & MASK) for i in range(100, 150)]
    assert [int(word) for word in many] == expected


def test_fingerprints_equal_plain_python() -> None:
    entries = np.array([range(-128, 128), range(2**28 - 256, 2**28)], dtype=np.int32)
    salt = [int(word) for word in words_from(5, 0, TILE)]
    expected = [
        sum(scalar_mix(int(entry) + with_ & MASK) for entry, with_ in zip(row, salt, strict=True))
        & MASK
        for row in entries
    ]
    assert [int(found) for found in fingerprints(entries, 5)] == expected


def test_fingerprints_are_not_linear() -> None:
    one, other = np.zeros((1, TILE), dtype=np.int32), np.ones((1, TILE), dtype=np.int32)
    found = [int(fingerprints(item, 5)[0]) for item in (one, other, 2 * other)]
    assert found[2] - found[1] != found[1] - found[0]


def scalar_chacha(state: list[int], double_rounds: int) -> list[int]:
    words = list(state)
    for _ in range(double_rounds):
        for a, b, c, d in (*pages._COLUMNS, *pages._DIAGONALS):
            for p, q, r, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                words[p] = words[p] + words[q] & 0xFFFFFFFF
                turned = words[r] ^ words[p]
                words[r] = (turned << bits | turned >> (32 - bits)) & 0xFFFFFFFF
    return [one + other & 0xFFFFFFFF for one, other in zip(words, state, strict=True)]


def test_pages_are_chacha_blocks() -> None:
    key = bytes(range(32))
    key_words = [int.from_bytes(key[at : at + 4], "little") for at in range(0, 32, 4)]
    constants = list(pages._CONSTANTS)
    rfc = scalar_chacha([*constants, *key_words, 1, 0x09000000, 0x4A000000, 0], 10)
    assert rfc[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3], "RFC 8439 2.3.2"
    number = 2**30 - 1
    (page,) = pages.pages(key, np.array([number], dtype=np.uint64), 7)
    for block in range(16):
        counter = 16 * number + block
        initial = [*constants, *key_words, counter & 0xFFFFFFFF, counter >> 32, 0, 0x67707570]
        assert [int(word) for word in page[16 * block : 16 * block + 16]] == scalar_chacha(
            initial, 7
        )


def test_a_step_depends_on_every_word_of_the_page() -> None:
    state = words_from(1, 0, 1)
    page = pages.pages(bytes(32), np.array([3], dtype=np.uint64), 1)
    before = int(pages.next_states(state.copy(), page)[0])
    for word in range(pages.PAGE_WORDS):
        other = page.copy()
        other[0, word] ^= 1
        assert int(pages.next_states(state.copy(), other)[0]) != before


def a_product() -> np.ndarray:
    numbers = np.arange(ORDER)
    left, right = rows(LEFT, numbers, ORDER), rows(RIGHT, numbers, ORDER)
    return (left.astype(np.int64) @ right.astype(np.int64).T).astype(np.int32)


def judged(tiles: np.ndarray, row: int = 3, block: int = 1) -> bool:
    secret = prepare(RIGHT, ORDER, SECRET)
    places = (np.array([LEFT], dtype=np.uint64), np.array([row]), np.array([block]))
    return bool(are_right(secret, *places, tiles.reshape(1, TILE))[0])


@pytest.mark.rule("10.8")
def test_right_tiles_pass_and_any_changed_entry_fails() -> None:
    product = a_product()
    chance = random.Random(1)
    for _ in range(50):
        row, block = chance.randrange(ORDER), chance.randrange(ORDER // TILE)
        tile = product[row, block * TILE : (block + 1) * TILE].copy()
        assert judged(tile, row, block)
        tile[chance.randrange(TILE)] += chance.choice((-1, 1, 1 << 20))
        assert not judged(tile, row, block)


@pytest.mark.rule("10.8")
def test_an_entry_that_is_wrong_by_the_prime_fails() -> None:
    tile = a_product()[3, TILE : 2 * TILE].copy()
    for wrong in (PRIME, -PRIME):
        other = tile.copy()
        other[9] += wrong
        assert not judged(other)


@pytest.mark.rule("10.8")
def test_a_tile_of_another_place_fails() -> None:
    product = a_product()
    assert not judged(product[4, TILE : 2 * TILE])
    assert not judged(product[3, :TILE])
