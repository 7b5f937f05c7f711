"""One lock for each name, forgotten when nobody holds or waits for it: work on one thing must
not wait for work on another.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class KeyedLocks:
    """For threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Holds the lock of this key."""
        with self._guard:
            lock = self._locks.setdefault(key, _Lock())
        with lock.inner:
            yield


class _Lock:
    """The module's own locks cannot be referred to weakly."""

    def __init__(self) -> None:
        self.inner = threading.Lock()
