"""The port between the prover and what computes: numpy, a GPU, or a GPU's kernels on a CPU.

Every engine gives the same bytes for the same seeds; one test holds them together.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quorate_attestation.parameters import Parameters


class OpenedTiles(NamedTuple):
    """Opened tiles of the newest product, in the order asked for."""

    tiles: bytes  # 256 little-endian int32 each
    rows: bytes  # all fingerprints of the tile's row: order / 256 little-endian uint64 each
    paths: bytes  # log2(order) hashes each, from the row's leaf to the root


class OpenedChains(NamedTuple):
    """Opened chains of the newest pass, in the order asked for."""

    buckets: bytes  # the final states of the chain's bucket: 32 little-endian uint64 each
    paths: bytes  # hashes from the bucket's leaf to the root


class Engine(Protocol):
    """Computes products and page chains. Its calls block. It remembers only the newest result."""

    def begin(self, parameters: Parameters, right_seed: int) -> None:
        """Reserves memory and makes the right matrix. Raises Unavailable if memory is short."""

    def multiply(self, left_seed: int, salt: int) -> bytes:
        """Computes a product and its fingerprints; returns the root over the rows."""

    def open_tiles(self, places: Sequence[tuple[int, int]]) -> OpenedTiles:
        """Opens tiles of the newest product, by row and block."""

    def fill(self, key: bytes) -> None:
        """Makes all pages, by a key of 32 bytes."""

    def run_chains(self, start_seed: int) -> bytes:
        """Returns the root over the buckets of final states."""

    def open_chains(self, chains: Sequence[int]) -> OpenedChains:
        """Opens chains of the newest pass."""

    def close(self) -> None: ...
