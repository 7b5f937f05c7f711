"""Engines that cheat: they skip tiles, or hold fewer pages than they claim."""

from collections.abc import Sequence

import numpy as np

from quorate_attestation.parameters import Parameters
from quorate_attestation.provers.engine import OpenedTiles
from quorate_attestation.provers.numpy_engine import NumpyEngine


class SkippingEngine(NumpyEngine):
    """Leaves out a share of the rows of each product: their entries are zero."""

    def __init__(self, share: float, seed: int = 1) -> None:
        """`share` of rows is skipped, the same ones in each round."""
        self._share, self._seed = share, seed

    def _matrix(self, seed: int) -> np.ndarray:
        whole = super()._matrix(seed)
        if seed == self._right_seed:
            return whole
        chance = np.random.default_rng(self._seed)
        whole[chance.random(len(whole)) < self._share] = 0
        return whole

    def begin(self, parameters: Parameters, right_seed: int) -> None:
        """Remembers which matrix is whole."""
        self._right_seed = right_seed
        super().begin(parameters, right_seed)


class ForgetfulEngine(NumpyEngine):
    """Holds only a share of the pages; the others are zero."""

    def __init__(self, share: float) -> None:
        """`share` of the pages is held."""
        self._share = share

    def fill(self, key: bytes) -> None:
        """Makes the first pages only."""
        super().fill(key)
        self._pages[int(len(self._pages) * self._share) :] = 0


class LateEngine(NumpyEngine):
    """Commits to garbage, and opens the right tiles after the sample is known."""

    def __init__(self) -> None:
        """Begins with garbage."""
        self._is_opening = False

    def multiply(self, left_seed: int, salt: int) -> bytes:
        """Computes the product, and commits to other fingerprints while it is not opening."""
        root = super().multiply(left_seed, salt)
        return root if self._is_opening else bytes(byte ^ 1 for byte in root)

    def open_tiles(self, places: Sequence[tuple[int, int]]) -> OpenedTiles:
        """Opens right tiles."""
        self._is_opening = True
        return super().open_tiles(places)
