"""The engine that runs the kernels of `kernels.cu` on a device."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from quorate_attestation.parameters import BUCKET, PAGE_BYTES, TILE, Parameters
from quorate_attestation.provers.engine import OpenedChains, OpenedTiles

DIGEST_BYTES = 32
WORD_BYTES = 8
_BLOCKS_A_PAGE = 16
_THREADS_A_TILE = 8
_SIDE = 4  # of the square of entries that one thread of int8_product computes


@cache
def kernel_source() -> str:
    return Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")


class Device(Protocol):
    """Memory and kernels. Addresses are integers; calls run in order."""

    def allocate(self, size: int) -> int:
        """Returns the address of new memory. Raises Unavailable if it is short."""

    def write(self, address: int, data: bytes) -> None: ...

    def read(self, address: int, size: int) -> bytes:
        """Waits for all kernels, and copies bytes from the device."""

    def launch(self, kernel: str, threads: int, *arguments: int) -> None:
        """Starts a kernel with at least so many threads. Every argument has 64 bits."""

    def multiply(self, left: int, right: int, product: int, order: int) -> bool:
        """Starts left × transposed(right) by a library; False if the device has none."""

    def close(self) -> None: ...


class KernelEngine:
    """Implements `Engine` on a device."""

    def __init__(self, device: Device) -> None:
        """Takes over the device."""
        self._device = device

    def begin(self, parameters: Parameters, right_seed: int) -> None:
        self._parameters = parameters
        order, allocate = parameters.order, self._device.allocate
        self._right, self._left = allocate(order * order), allocate(order * order)
        self._product = allocate(4 * order * order)
        self._prints = allocate(WORD_BYTES * order * parameters.blocks)
        self._salt = allocate(WORD_BYTES * TILE)
        self._key = allocate(DIGEST_BYTES)
        self._row_digests = _Digests(self._device, order)
        self._states = allocate(WORD_BYTES * parameters.chains)
        self._bucket_digests = _Digests(self._device, parameters.chains // BUCKET)
        self._pages = allocate(PAGE_BYTES * parameters.pages)
        self._fill_matrix(self._right, right_seed)

    def _fill_matrix(self, address: int, seed: int) -> None:
        words = self._parameters.order**2 // WORD_BYTES
        self._device.launch("fill_words", words, address, seed, words)

    def multiply(self, left_seed: int, salt: int) -> bytes:
        device, order, blocks = self._device, self._parameters.order, self._parameters.blocks
        self._fill_matrix(self._left, left_seed)
        if not device.multiply(self._left, self._right, self._product, order):
            threads = (order // _SIDE) ** 2
            arguments = (self._left, self._right, self._product, order)
            device.launch("int8_product", threads, *arguments)
        tiles = order * blocks
        device.launch("fill_words", TILE, self._salt, salt, TILE)
        device.launch("clear_words", tiles, self._prints, tiles)
        arguments = (self._product, self._salt, self._prints, tiles)
        device.launch("fingerprint_tiles", tiles * _THREADS_A_TILE, *arguments)
        return self._row_digests.root(self._prints, blocks)

    def open_tiles(self, places: Sequence[tuple[int, int]]) -> OpenedTiles:
        read, order, row_bytes = self._device.read, self._parameters.order, self._row_bytes()
        tile_bytes = 4 * TILE
        return OpenedTiles(
            b"".join(
                read(self._product + 4 * order * row + tile_bytes * block, tile_bytes)
                for row, block in places
            ),
            b"".join(read(self._prints + row_bytes * row, row_bytes) for row, _ in places),
            b"".join(self._row_digests.path(row) for row, _ in places),
        )

    def _row_bytes(self) -> int:
        return WORD_BYTES * self._parameters.blocks

    def fill(self, key: bytes) -> None:
        blocks = self._parameters.pages * _BLOCKS_A_PAGE
        self._device.write(self._key, key)
        arguments = (self._pages, self._key, blocks, self._parameters.page_rounds)
        self._device.launch("fill_pages", blocks, *arguments)

    def run_chains(self, start_seed: int) -> bytes:
        chains = self._parameters.chains
        arguments = (self._pages, self._parameters.pages, start_seed, chains, self._states)
        self._device.launch("run_chains", chains, *arguments)
        return self._bucket_digests.root(self._states, BUCKET)

    def open_chains(self, chains: Sequence[int]) -> OpenedChains:
        size = WORD_BYTES * BUCKET
        buckets = [chain // BUCKET for chain in chains]
        return OpenedChains(
            b"".join(self._device.read(self._states + size * bucket, size) for bucket in buckets),
            b"".join(self._bucket_digests.path(bucket) for bucket in buckets),
        )

    def close(self) -> None:
        self._device.close()


class _Digests:
    """A tree of SHA-256 in the device's memory: the leaves, then each level above."""

    def __init__(self, device: Device, leaves: int) -> None:
        self._device, self._leaves = device, leaves
        self._at = device.allocate(2 * DIGEST_BYTES * leaves)

    def root(self, words: int, words_a_row: int) -> bytes:
        self._device.launch("digest_rows", self._leaves, words, words_a_row, self._leaves, self._at)
        below, count = self._at, self._leaves
        while count > 1:
            above = below + DIGEST_BYTES * count
            count //= 2
            self._device.launch("digest_pairs", count, below, count, above)
            below = above
        return self._device.read(below, DIGEST_BYTES)

    def path(self, index: int) -> bytes:
        found, level, count = [], self._at, self._leaves
        while count > 1:
            found.append(self._device.read(level + DIGEST_BYTES * (index ^ 1), DIGEST_BYTES))
            level += DIGEST_BYTES * count
            count, index = count // 2, index // 2
        return b"".join(found)
