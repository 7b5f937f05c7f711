"""Gives each key its own lock, so that work on one thing does not wait for work on another.

A lock that no thread holds or waits for is forgotten.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class KeyedLocks:
    """Locks between threads, by key."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(key, _Lock())
        with lock.inner:
            yield


class _Lock:
    """A lock that can have weak references, unlike those of the standard library."""

    def __init__(self) -> None:
        self.inner = threading.Lock()
