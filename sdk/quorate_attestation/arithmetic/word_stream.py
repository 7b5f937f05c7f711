"""Streams of pseudo-random 64-bit words, and the int8 matrices and fingerprints made of them.

Word i of a stream is mix(seed + i × G), the generator SplitMix64 (Steele, Lea, Flood 2014,
https://doi.org/10.1145/2714064.2660195). All arithmetic is modulo 2^64. Any word can be computed
alone, so a verifier makes only the rows that it opens.
"""

import numpy as np
import numpy.typing as npt

from quorate_attestation.parameters import TILE

Words = npt.NDArray[np.uint64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(words: Words) -> Words:
    """Mixes words in place with the finaliser of SplitMix64."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def words_at(seed: int, indices: Words) -> Words:
    words = indices * _GAMMA
    words += np.uint64(seed)
    return mix(words)


def words_from(seed: int, first: int, count: int) -> Words:
    return words_at(seed, np.arange(first, first + count, dtype=np.uint64))


def rows(seed: int, indices: npt.NDArray[np.int64], order: int) -> npt.NDArray[np.int8]:
    """Shape (indices, order). A word holds 8 entries, lowest first."""
    words_a_row = order // 8
    first = indices.astype(np.uint64) * np.uint64(words_a_row)
    places = first[:, None] + np.arange(words_a_row, dtype=np.uint64)[None, :]
    return words_at(seed, places).view(np.int8).reshape(len(indices), order)


def fingerprints(tiles: npt.NDArray[np.int32], salt: int) -> Words:
    """The sum over j of mix(entry_j + salt_j); `tiles` has shape (..., 256). Not linear on purpose:
    a linear one of a row could be computed without the product.
    """
    salted = tiles.astype(np.int64).view(np.uint64)
    salted += words_from(salt, 0, TILE)
    summed: Words = mix(salted).sum(axis=-1, dtype=np.uint64)
    return summed
