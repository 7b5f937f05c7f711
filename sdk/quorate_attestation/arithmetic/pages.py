"""Pages of memory that are costly to make, and chains of reads that need them in memory.

A page is 16 blocks of 64 bytes. Block j of page p is the ChaCha block function of RFC 8439 with
counter 16 p + j and a chosen count of double rounds. More rounds make it dearer to compute a page
again than to keep it.

A chain has a 64-bit state x. A step reads page (upper half of x) × pages / 2^32 and mixes all of
it into x, under a key made of x. So a digest of the page cannot replace the page.
"""

import numpy as np
import numpy.typing as npt

from quorate_attestation.arithmetic.word_stream import Words, mix
from quorate_attestation.parameters import CHAIN_STEPS

Half = npt.NDArray[np.uint32]
PAGE_WORDS = 256  # of 32 bits
BLOCKS = 16
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_LAST_WORD = 0x67707570
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_AT_ONCE = 8192  # blocks, so that the state stays in the cache
_LOW = np.uint64(0xFFFFFFFF)
_STEP_KEYS = (
    np.arange(PAGE_WORDS, dtype=np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
).astype(np.uint32)


def pages(key: bytes, numbers: Words, page_rounds: int) -> Half:
    """Shape (numbers, 256). The key has 32 bytes."""
    first = numbers[:, None] * np.uint64(BLOCKS)
    counters = (first + np.arange(BLOCKS, dtype=np.uint64)[None, :]).ravel()
    found = np.empty((len(counters), 16), dtype=np.uint32)
    for at in range(0, len(counters), _AT_ONCE):
        found[at : at + _AT_ONCE] = chacha(key, counters[at : at + _AT_ONCE], page_rounds).T
    return found.reshape(len(numbers), PAGE_WORDS)


def chacha(key: bytes, counters: Words, double_rounds: int) -> Half:
    """Returns shape (16, counters). State: 64-bit counter, then words 0 and "pupg"."""
    initial = np.empty((16, len(counters)), dtype=np.uint32)
    initial[:4] = np.array(_CONSTANTS, dtype=np.uint32)[:, None]
    initial[4:12] = np.frombuffer(key, dtype="<u4")[:, None]
    initial[12] = counters & _LOW
    initial[13] = counters >> np.uint64(32)
    initial[14] = 0
    initial[15] = _LAST_WORD
    state = initial.copy()
    spare = np.empty(len(counters), dtype=np.uint32)
    for _ in range(double_rounds):
        for quarter in (*_COLUMNS, *_DIAGONALS):
            _quarter_round(state, quarter, spare)
    return state + initial


def _quarter_round(state: Half, places: tuple[int, int, int, int], spare: Half) -> None:
    a, b, c, d = (state[place] for place in places)
    for summed, added, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        summed += added
        turned ^= summed
        np.left_shift(turned, np.uint32(bits), out=spare)
        np.right_shift(turned, np.uint32(32 - bits), out=turned)
        turned |= spare


def page_numbers(states: Words, page_count: int) -> Words:
    """Returns the page that each chain reads next."""
    return (states >> np.uint64(32)) * np.uint64(page_count) >> np.uint64(32)


def next_states(states: Words, read: Half) -> Words:
    """x' = mix(x + NH_k(page)) with the keyed sum of products NH of UMAC (RFC 4418 §5.2.2)."""
    low, high = (states & _LOW).astype(np.uint32), (states >> np.uint64(32)).astype(np.uint32)
    keys = _scramble(low[:, None] ^ _STEP_KEYS[None, :])
    keys ^= high[:, None]
    keyed = (read + keys).astype(np.uint64)
    summed = (keyed[:, 0::2] * keyed[:, 1::2]).sum(axis=1, dtype=np.uint64)
    return mix(states + summed)


def _scramble(words: Half) -> Half:
    """Mixes 32-bit words in place with the finaliser of MurmurHash3."""
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


def final_states(key: bytes, starts: Words, page_count: int, page_rounds: int) -> Words:
    """Makes the pages that chains read, and keeps none."""
    states = starts
    for _ in range(CHAIN_STEPS):
        states = next_states(states, pages(key, page_numbers(states, page_count), page_rounds))
    return states
