"""The reference engine: numpy on the CPU. It attests machines without a GPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quorate_attestation import digest_tree
from quorate_attestation.arithmetic.pages import Half, next_states, page_numbers, pages
from quorate_attestation.arithmetic.word_stream import fingerprints, rows, words_from
from quorate_attestation.parameters import BUCKET, CHAIN_STEPS, TILE, Parameters
from quorate_attestation.provers.engine import OpenedChains, OpenedTiles

_FLOAT32_ORDER_MAX = 1024  # sums of so many products of int8 stay within 2^24, exact in float32
_AT_ONCE = 1 << 14  # pages or chains


class NumpyEngine:
    """Implements `Engine` with numpy. A product of order 1,024 takes about 0.1 s on one core."""

    def begin(self, parameters: Parameters, right_seed: int) -> None:
        self._parameters = parameters
        self._right = self._matrix(right_seed).T

    def _matrix(self, seed: int) -> npt.NDArray[np.float64]:
        """In the smallest type in which the product's sums are exact."""
        order = self._parameters.order
        kind: npt.DTypeLike = np.float32 if order <= _FLOAT32_ORDER_MAX else np.float64
        exact: npt.NDArray[np.float64] = rows(seed, np.arange(order), order).astype(kind)
        return exact

    def multiply(self, left_seed: int, salt: int) -> bytes:
        parameters = self._parameters
        product = (self._matrix(left_seed) @ self._right).astype(np.int32)
        self._tiles: npt.NDArray[np.int32] = product.reshape(-1, parameters.blocks, TILE)
        self._prints = fingerprints(self._tiles, salt)
        self._row_levels = _levels(self._prints)
        return self._row_levels[-1][0]

    def open_tiles(self, places: Sequence[tuple[int, int]]) -> OpenedTiles:
        return OpenedTiles(
            b"".join(self._tiles[row, block].astype("<i4").tobytes() for row, block in places),
            b"".join(self._prints[row].astype("<u8").tobytes() for row, _ in places),
            b"".join(digest_tree.path(self._row_levels, row) for row, _ in places),
        )

    def fill(self, key: bytes) -> None:
        count = self._parameters.pages
        self._pages: Half = np.empty((count, 256), dtype=np.uint32)
        for at in range(0, count, _AT_ONCE):
            numbers = np.arange(at, min(count, at + _AT_ONCE), dtype=np.uint64)
            self._pages[at : at + _AT_ONCE] = pages(key, numbers, self._parameters.page_rounds)

    def run_chains(self, start_seed: int) -> bytes:
        states = words_from(start_seed, 0, self._parameters.chains)
        for at in range(0, len(states), _AT_ONCE):
            part = states[at : at + _AT_ONCE]
            for _ in range(CHAIN_STEPS):
                numbers = page_numbers(part, self._parameters.pages).astype(np.int64)
                part = next_states(part, self._pages[numbers])
            states[at : at + _AT_ONCE] = part
        self._buckets = states.reshape(-1, BUCKET)
        self._bucket_levels = _levels(self._buckets)
        return self._bucket_levels[-1][0]

    def open_chains(self, chains: Sequence[int]) -> OpenedChains:
        buckets = [chain // BUCKET for chain in chains]
        return OpenedChains(
            b"".join(self._buckets[bucket].astype("<u8").tobytes() for bucket in buckets),
            b"".join(digest_tree.path(self._bucket_levels, bucket) for bucket in buckets),
        )

    def close(self) -> None:
        self.__dict__.clear()


def _levels(words: npt.NDArray[np.uint64]) -> list[list[bytes]]:
    return digest_tree.levels_above(
        [digest_tree.leaf(row.tobytes()) for row in words.astype("<u8", copy=False)]
    )
