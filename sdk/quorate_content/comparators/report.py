"""What the comparison of two outputs says. It needs no numpy, unlike the comparison itself."""

from msgspec import Struct

PPB_ONE = 1_000_000_000
DIFFERENT = 1 << 62
"""The distance of results that no tolerance lets agree, in ppb."""
SHOWN_MAX = 20  # differences that a report names


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
    differences: tuple[Difference, ...] = ()  # the largest first, at most `SHOWN_MAX`
