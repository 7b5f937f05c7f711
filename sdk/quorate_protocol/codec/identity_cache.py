"""Results kept by the identity of the frozen value that they were computed from.

`functools.lru_cache` hashes a message field by field at each look, which costs as much as what
is kept saves. Equal values that are not one object are computed again, to the same result. The
newest values are held, so that no identity is ever another's. A busy process fills what it may
keep in seconds, a calm one in many minutes: `age_all`, called now and then, bounds it by time as
well.
"""

import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A function of one frozen value. Between `newest` and twice as many results are held: the
    older generation goes at once.
    """

    __slots__ = ("__weakref__", "_compute", "_newest", "_old", "_young")

    def __init__(self, compute: Callable[[K], V], newest: int = 4096) -> None:
        self._compute, self._newest = compute, newest
        self._young: dict[int, tuple[K, V]] = {}
        self._old: dict[int, tuple[K, V]] = {}
        _all.add(self)

    def __call__(self, value: K) -> V:
        """The result."""
        place = id(value)
        found = self._young.get(place)
        if found is not None:
            return found[1]
        found = self._old.get(place) or (value, self._compute(value))
        if len(self._young) >= self._newest:
            self.age()
        self._young[place] = found
        return found[1]

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def age(self) -> None:
        """The older generation goes, the younger one is the older now."""
        self._young, self._old = {}, self._young


class _Ages(Protocol):
    def age(self) -> None: ...


_all: weakref.WeakSet[_Ages] = weakref.WeakSet()


def age_all() -> None:
    """All of the process: what nobody asked for between two calls goes."""
    for kept in list(_all):
        kept.age()
