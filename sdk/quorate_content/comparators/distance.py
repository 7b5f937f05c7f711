"""The distance of two arrays of numbers: one figure, which a tolerance bounds.

It is the larger of two. The relative L2 distance |a - b| / max(|a|, |b|) says how far the whole is
apart. The largest single difference, divided by `SINGLE_SHARE` of the values' size, finds a patch
that the whole would hide: of two values it takes the larger one as their size, but at least the
root mean square of their array, so that noise around zero is no difference.

Where one value is not a number or infinite, the other must be the same. Sums are scaled as in
LAPACK's `dlassq`, so neither 1e300 nor 1e-300 is lost.
"""

import math
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quorate_content.comparators.report import DIFFERENT, PPB_ONE

HUGE = 1e307
SINGLE_SHARE = 32  # how many tolerances one value may be away


class SquareSum:
    """A sum of squares that neither overflows nor vanishes."""

    def __init__(self) -> None:
        self.largest, self._sum, self.count = 0.0, 0.0, 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds the squares of finite values."""
        self.count += len(values)
        largest = float(np.max(np.abs(values), initial=0.0))
        if largest == 0.0:
            return
        if largest > self.largest:
            self._sum *= (self.largest / largest) ** 2
            self.largest = largest
        self._sum += float(np.sum(np.square(values / self.largest)))

    @property
    def root(self) -> float:
        """The square root of the sum."""
        return self.largest * math.sqrt(self._sum)

    @property
    def mean_root(self) -> float:
        """The root mean square; 0.0 without values."""
        return self.largest * math.sqrt(self._sum / self.count) if self.count else 0.0


Pieces = Callable[[], Iterable[NDArray[Any]]]


def numbers(left: Pieces, right: Pieces) -> int:
    """The distance of two arrays of as many float64 values, in ppb. Both are read twice, in pieces
    of the same lengths.
    """
    one, other = SquareSum(), SquareSum()
    for a, b in zip_longest(left(), right()):
        if not _is_same_where_not_finite(a, b):
            return DIFFERENT
        keep = np.isfinite(a)
        one.add(a[keep])
        other.add(b[keep])
    largest, least_size = max(one.root, other.root), max(one.mean_root, other.mean_root)
    if largest == 0.0:
        return 0
    # The difference of two numbers may be larger than any number.
    factor = 0.5 if max(one.largest, other.largest) > HUGE else 1.0
    apart, single = SquareSum(), 0.0
    for a, b in zip_longest(left(), right()):
        keep = np.isfinite(a)
        one_part, other_part = a[keep] * factor, b[keep] * factor
        gap = one_part - other_part
        apart.add(gap)
        size = np.maximum(np.maximum(np.abs(one_part), np.abs(other_part)), least_size * factor)
        single = max(single, float(np.max(np.abs(gap) / size, initial=0.0, where=size > 0)))
    found = max(apart.root / (largest * factor), single / SINGLE_SHARE)
    return min(DIFFERENT - 1, math.ceil(found * PPB_ONE))


def equal(left: Pieces, right: Pieces) -> int:
    """0 if two arrays of whole numbers are equal, else `DIFFERENT`."""
    same = all(np.array_equal(a, b) for a, b in zip_longest(left(), right()))
    return 0 if same else DIFFERENT


def _is_same_where_not_finite(a: NDArray[Any], b: NDArray[Any]) -> bool:
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    if not np.array_equal(finite_a, finite_b):
        return False
    if finite_a.all():
        return True
    return np.array_equal(a[~finite_a], b[~finite_b], equal_nan=True)
