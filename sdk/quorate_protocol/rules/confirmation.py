"""Confirmation of a fault: two members of the accepted group repeat the job (PROTOCOL §5 Faults).

A program with random results makes honest providers differ. If a member that repeats the job gives
another result than before, the program is at fault, and nobody else.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.units import Hash32

REPEATS = 2


class Repeat(Struct, frozen=True):
    """A second execution of a job by one provider: its first result, and the one of the repeat."""

    before: Hash32 | None
    again: Hash32 | None  # None when it was not revealed


def has_differed(repeats: Sequence[Repeat]) -> bool:
    """Whether a provider gave another result than before. Then no result of the job counts."""
    return any(item.again is not None and item.again != item.before for item in repeats)


def is_confirmed(repeats: Sequence[Repeat]) -> bool:
    """Whether so many members repeated their own result that the others are at fault."""
    return sum(item.again is not None for item in repeats) >= REPEATS and not has_differed(repeats)
