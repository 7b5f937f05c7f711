"""Confirmation of a fault: two members of the accepted group repeat the job (PROTOCOL §5 Faults).

A member that gives another result than its own first has contradicted itself, and its first
execution counts for nothing. If two owners contradict themselves, the program is at fault.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.units import Hash32

REPEATS = 2
RANDOM_OWNERS = 2  # that contradict themselves, until their program is at fault


class Repeat(Struct, frozen=True):
    """A second execution of a job by one provider: its first result, and the one of the repeat."""

    first: Hash32  # the assignment hash of its first execution
    before: Hash32 | None
    again: Hash32 | None  # None when it was not revealed


def contradicted(repeats: Sequence[Repeat]) -> frozenset[Hash32]:
    """Returns the first executions of the providers that gave another result than before."""
    return frozenset(item.first for item in repeats if item.again not in (None, item.before))


def is_random(repeats: Sequence[Repeat]) -> bool:
    """Whether two owners gave another result than before. Then nobody is at fault."""
    return len(contradicted(repeats)) >= RANDOM_OWNERS


def missing(repeats: Sequence[Repeat], result: Hash32 | None) -> int:
    """Returns how many members must still repeat a result, until who gave another is at fault."""
    return max(0, REPEATS - sum(item.before == item.again == result for item in repeats))
