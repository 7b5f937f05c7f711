"""A cache of results by the identity of the frozen value that they were computed from.

`functools.lru_cache` would hash a message field by field at each look-up, which costs as much as
the cache saves. For two equal values that are not one object, the result is computed twice. The
cache holds the values, so that no other object can get the identity of one of them. A busy process
fills the cache in seconds, a quiet one in many minutes. So `age_all` also limits the age of
results.
"""

import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A function of one frozen value that caches its newest results. It holds between `newest` and
    twice as many results in two generations, and drops the older generation at once.
    """

    __slots__ = ("__weakref__", "_compute", "_newest", "_old", "_young")

    def __init__(self, compute: Callable[[K], V], newest: int = 4096) -> None:
        self._compute, self._newest = compute, newest
        self._young: dict[int, tuple[K, V]] = {}
        self._old: dict[int, tuple[K, V]] = {}
        _all.add(self)

    def __call__(self, value: K) -> V:
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
        """Drops the older generation; the younger one becomes the older."""
        self._young, self._old = {}, self._young


class _Ages(Protocol):
    def age(self) -> None: ...


_all: weakref.WeakSet[_Ages] = weakref.WeakSet()


def age_all() -> None:
    """Ages every cache of the process. A result that nobody uses between two calls is dropped."""
    for kept in list(_all):
        kept.age()
