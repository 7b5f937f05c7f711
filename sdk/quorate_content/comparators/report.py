"""What the comparison of two outputs says. It needs no numpy, unlike the comparison itself."""

from collections.abc import Iterable

from msgspec import Struct

from quorate_protocol.units import PPM_ONE

PPB_ONE = 1_000_000_000
DIFFERENT = 1 << 62
"""The distance of results that no tolerance lets agree, in ppb."""
SHOWN_MAX = 20  # differences that a report names
TOLERANCE_PPM_MAX = 100_000  # with more than a tenth, results of other inputs might agree


class Difference(Struct, frozen=True):
    """One file or array that is not equal."""

    path: str
    part: str  # the array; "" for a whole file
    ppb: int  # `DIFFERENT` if no tolerance lets it agree
    why: str = ""


class Report(Struct, frozen=True):
    """The distance of two outputs: the largest of any of their files."""

    ppb: int
    files: int  # that were compared
    differences: tuple[Difference, ...] = ()  # the largest first, at most as many as asked for


def tolerance_ppm(distances: Iterable[int]) -> int:
    """Returns 1.5 times the 99th percentile (nearest rank) of distances in ppb, rounded up to ppm.
    It is at least the largest, because the file that is furthest apart decides.
    """
    ranked = sorted(distances)
    if not ranked:
        return 0
    percentile = ranked[-(-99 * len(ranked) // 100) - 1]
    return -(-max(percentile * 3 // 2, ranked[-1]) // (PPB_ONE // PPM_ONE))
