"""Which results of a job agree (PROTOCOL §5 Batches).

Under the comparator `exact` equal results agree. Under a comparator with a tolerance τ two results
agree up to the distance τ, and differ for certain from 2τ on. What lies between decides nothing:
another execution does. Such agreement is not transitive. So in a group each pair agrees, and its
output is the member nearest to all others: nobody moves it by more than τ from an honest member.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from msgspec import Struct

from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages.signed import Reveal
from quorate_protocol.units import Hash32

DIFFER_AT = 2  # tolerances
PAIRS_MAX = EXECUTIONS_MAX * (EXECUTIONS_MAX - 1) // 2
PPB_OF_PPM = 1000

Results = Sequence[Hash32 | None]
"""The results of a job's executions in CommitSet order; None for one that has none."""


class Agreement(Struct, frozen=True):
    """What says whether two results of one job agree."""

    tolerance_ppm: int = 0
    # Both results, in order -> distance in ppb; without an entry they differ for certain. None: the
    # comparator is exact.
    distances: dict[tuple[Hash32, ...], int] | None = None

    @property
    def is_exact(self) -> bool:
        return self.distances is None

    def distance(self, one: Hash32 | None, other: Hash32 | None) -> int | None:
        if one == other:
            return 0
        return (self.distances or {}).get(_pair(one, other))

    def agrees(self, one: Hash32 | None, other: Hash32 | None) -> bool:
        found = self.distance(one, other)
        return found is not None and found <= self.tolerance_ppm * PPB_OF_PPM

    def differs(self, one: Hash32 | None, other: Hash32 | None) -> bool:
        """For certain; see `DIFFER_AT`."""
        found = self.distance(one, other)
        return found is None or found >= max(1, DIFFER_AT * self.tolerance_ppm * PPB_OF_PPM)


EXACT = Agreement()


def within(
    tolerance_ppm: int, distances: Iterable[tuple[Hash32 | None, Hash32 | None, int | None]]
) -> Agreement:
    """Makes the agreement within a tolerance of (one result, other result, distance)."""
    known = {_pair(one, other): ppb for one, other, ppb in distances if ppb is not None}
    return Agreement(tolerance_ppm, known)


def _pair(*results: Hash32 | None) -> tuple[Hash32, ...]:
    return tuple(sorted(result for result in results if result is not None))


def pairs_to_compare(reveals: Sequence[Reveal | None]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of executions whose outputs must be compared, in order: one for each two
    results that differ and have the same exit status.
    """
    first: dict[tuple[int, Hash32], int] = {}
    for number, reveal in enumerate(reveals):
        if reveal is not None:
            first.setdefault((reveal.exit_status, reveal.output_digest), number)
    return tuple(
        (first[one], first[other]) for one, other in combinations(first, 2) if one[0] == other[0]
    )


def groups(agreement: Agreement, results: Results) -> list[tuple[int, ...]]:
    """Returns the groups in which each pair agrees and that no further execution can join.

    The largest comes first, and of equal size the one whose members come first.
    """
    return _cliques(results, _with_result(results), agreement.agrees)


def rivals(agreement: Agreement, results: Results, group: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the groups among the executions that differ for certain from a member of `group`."""
    apart = [
        number
        for number in _with_result(results)
        if number not in group
        and any(agreement.differs(results[number], results[member]) for member in group)
    ]
    return _cliques(results, apart, agreement.agrees)


def different(agreement: Agreement, results: Results, for_certain: bool = False) -> int:
    """Returns the size of the largest set of results of which no two agree, or of which each two
    differ for certain.
    """

    def is_apart(one: Hash32 | None, other: Hash32 | None) -> bool:
        return agreement.differs(one, other) if for_certain else not agreement.agrees(one, other)

    found = _cliques(results, _with_result(results), is_apart)
    return max(map(len, found), default=0)


def in_order(agreement: Agreement, results: Results, group: Sequence[int]) -> tuple[int, ...]:
    """Returns a group with the execution first whose output is the job's. The others keep their
    order.

    It is the one whose distances to the others have the least sum, the first of equals.
    """

    def total(member: int) -> int:
        return sum(agreement.distance(results[member], results[other]) or 0 for other in group)

    first = min(group, key=lambda member: (total(member), member))
    return (first, *(member for member in group if member != first))


def _with_result(results: Results) -> list[int]:
    return [number for number, result in enumerate(results) if result is not None]


def _cliques(
    results: Results,
    members: Sequence[int],
    is_edge: Callable[[Hash32 | None, Hash32 | None], bool],
) -> list[tuple[int, ...]]:
    """Returns the largest sets in which each pair has an edge. A job has at most 7 executions that
    count, so all 127 subsets are tried.
    """
    pairs = combinations(members, 2)
    edges = {(one, other) for one, other in pairs if is_edge(results[one], results[other])}
    found = list[tuple[int, ...]]()
    for size in range(len(members), 0, -1):
        for group in combinations(members, size):
            is_part = any(set(group) <= set(larger) for larger in found)
            if not is_part and all(pair in edges for pair in combinations(group, 2)):
                found.append(group)
    return found
