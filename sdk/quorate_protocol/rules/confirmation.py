"""Confirmation of a fault: two members of the accepted group repeat the job (PROTOCOL §5 Faults).

Only results of one determinism class contradict each other. So those two are of the class of the
execution with the other result; one in a class of its own is outvoted, and at no fault.

A member that gives another result than its own first has contradicted itself, and its first
execution counts for nothing. If two owners contradict themselves, the program is at fault.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from quorate_protocol.units import ZERO_HASH, Hash32

REPEATS = 2
RANDOM_OWNERS = 2  # that contradict themselves, until their program is at fault


class Repeat(Struct, frozen=True):
    """A second execution of a job by one provider: its first result, and the one of the repeat."""

    first: Hash32  # the assignment hash of its first execution
    before: Hash32 | None
    again: Hash32 | None  # None when it was not revealed, or made in another class
    class_id: Hash32 = ZERO_HASH  # determinism class


def contradicted(repeats: Sequence[Repeat]) -> frozenset[Hash32]:
    """Returns the first executions of the providers that gave another result than before."""
    return frozenset(item.first for item in repeats if item.again not in (None, item.before))


def is_random(repeats: Sequence[Repeat]) -> bool:
    """Whether two owners gave another result than before. Then nobody is at fault."""
    return len(contradicted(repeats)) >= RANDOM_OWNERS


def missing(repeats: Sequence[Repeat], result: Hash32 | None, class_id: Hash32) -> int:
    """Returns how many members of a class must still repeat a result, until who gave another there
    is at fault.
    """
    here = [item for item in repeats if item.class_id == class_id]
    return max(0, REPEATS - sum(item.before == item.again == result for item in here))


def disputed(
    results: Iterable[tuple[Hash32 | None, Hash32]], result: Hash32 | None
) -> frozenset[Hash32]:
    """Returns the classes in which some gave `result` and others another one. `results`: result
    and determinism class of each execution.
    """
    known = [(other, kind) for other, kind in results if other is not None]
    agreed = {kind for other, kind in known if other == result}
    return frozenset(kind for other, kind in known if other != result and kind in agreed)
