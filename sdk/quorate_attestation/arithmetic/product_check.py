"""Checks opened tiles of a product without computing the product (Freivalds 1977).

A verifier draws a secret vector s and computes Z = B s once for each beacon round, block by block.
A tile C of row i and block J is right only if C · s_J = A_i · Z_J modulo p. A wrong tile passes
with at most 2^-24, because s has 2^24 equally likely values at the entry that differs.

Every entry must lie within 2^14 n. Without this bound, an entry that is wrong by p itself would
pass. All sums stay below 2^53, so float64 holds them exactly.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quorate_attestation.arithmetic.word_stream import rows, words_from
from quorate_attestation.parameters import ORDER_MAX, TILE

PRIME = (1 << 30) - 35
SECRET_BITS = 24
_ENTRIES_AT_ONCE = 1 << 18  # so that temporary arrays stay in the cache

assert 2 * (ORDER_MAX << 14) < PRIME, "two entries within the bound never differ by the prime"
assert 128 * PRIME * ORDER_MAX < 1 << 53, "a row's sum is exact in float64"


@dataclass(frozen=True, slots=True)
class ProductSecret:
    """A verifier's secret for one right matrix. It must not leave the verifier."""

    order: int
    vector: npt.NDArray[np.int64]  # s, shape (blocks, 256), below 2^24
    sums: npt.NDArray[np.float64]  # Z modulo p, shape (blocks, order)


def prepare(right_seed: int, order: int, secret_seed: int) -> ProductSecret:
    """Computes Z for one right matrix; about 0.4 CPU seconds at order 16,384. Row j of the stored
    matrix is column j of B, so block J of Z is s_J times 256 stored rows.
    """
    drawn = words_from(secret_seed, 0, order) & np.uint64((1 << SECRET_BITS) - 1)
    vector = drawn.astype(np.int64).reshape(-1, TILE)
    sums = np.zeros((order // TILE, order))
    step = min(TILE, max(1, _ENTRIES_AT_ONCE // order))
    for first in range(0, order, step):
        stored = rows(right_seed, np.arange(first, first + step), order).astype(np.float64)
        block, at = divmod(first, TILE)
        sums[block] += vector[block, at : at + step].astype(np.float64) @ stored
    return ProductSecret(order, vector, np.mod(sums, PRIME))


def are_right(
    secret: ProductSecret,
    left_seeds: npt.NDArray[np.uint64],
    row_numbers: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    tiles: npt.NDArray[np.int32],
) -> npt.NDArray[np.bool_]:
    """All arrays have one entry for each tile; `tiles` has shape (count, 256), `left_seeds` are of
    the tiles' rounds.
    """
    entries = tiles.astype(np.int64)
    is_bounded = (np.abs(entries) <= secret.order << 14).all(axis=1)
    shown = np.mod((entries * secret.vector[blocks]).sum(axis=1), PRIME)
    expected = np.empty(len(tiles), dtype=np.int64)
    step = max(1, _ENTRIES_AT_ONCE // secret.order)
    for first in range(0, len(tiles), step):
        part = slice(first, first + step)
        left = _left_rows(left_seeds[part], row_numbers[part], secret.order)
        summed = np.einsum("tn,tn->t", left, secret.sums[blocks[part]])
        expected[part] = np.mod(summed, PRIME).astype(np.int64)
    result: npt.NDArray[np.bool_] = is_bounded & (shown == expected)
    return result


def _left_rows(
    seeds: npt.NDArray[np.uint64], row_numbers: npt.NDArray[np.int64], order: int
) -> npt.NDArray[np.float64]:
    """Shape (count, order)."""
    found = np.empty((len(seeds), order))
    for seed in np.unique(seeds):
        mine = seeds == seed
        found[mine] = rows(int(seed), row_numbers[mine], order)
    return found
