"""Counts verified bytes by the source that sent them."""

import threading

SOURCES_MAX = 256
OTHERS = "others"


class ByteCounts:
    """Bytes of files by source, since this object was made. Safe from any thread, and bounded."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, source: str, count: int) -> None:
        """Adds verified bytes. Sources beyond `SOURCES_MAX` are counted together as `others`."""
        with self._guard:
            if source not in self._counts and len(self._counts) >= SOURCES_MAX:
                source = OTHERS
            self._counts[source] = self._counts.get(source, 0) + count

    def by_source(self) -> dict[str, int]:
        """Returns a copy: bytes by source, in the order in which the sources first sent some."""
        with self._guard:
            return dict(self._counts)
