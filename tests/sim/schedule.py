"""Virtual time, and a queue of everything that will happen in it.

Actions of one moment run in the order in which they were added.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from quorate_protocol.units import UnixSeconds

Action = Callable[[], None]


class Schedule:
    """Milliseconds inside, whole seconds for the rules."""

    def __init__(self, start: int) -> None:
        self.now_ms = start * 1000
        self._queue: list[tuple[int, int, Action]] = []
        self._count = 0

    @property
    def now(self) -> UnixSeconds:
        """Unix seconds, as a daemon reads them."""
        return UnixSeconds(self.now_ms // 1000)

    def after(self, seconds: float, action: Action) -> None:
        """Runs the action later, but never before what is already due at that moment."""
        self._count += 1
        heappush(self._queue, (self.now_ms + max(0, round(seconds * 1000)), self._count, action))

    def run(self, seconds: float) -> None:
        """Lets some seconds pass."""
        until = self.now_ms + round(seconds * 1000)
        while self._queue and self._queue[0][0] <= until:
            self.now_ms, _, action = heappop(self._queue)
            action()
        self.now_ms = until
