"""How many replicas a revision needs, by the requests in flight."""

from collections import deque
from dataclasses import dataclass, field

KEEP_SECONDS = 60.0  # a replica that is too many goes after so long
BACKOFF_SECONDS = (0.0, 2.0, 5.0, 15.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """The bounds of a service. `in_flight`: requests that one replica takes at once. `idle`:
    seconds without a request after which only `least` stay. `warm`: ready ones more than needed.
    """

    least: int = 1
    most: int = 1
    in_flight: int = 8
    idle: float = 300.0
    warm: int = 0


@dataclass(slots=True)
class Scaler:
    """Follows the demand of one revision."""

    scale: Scale
    busy_at: float
    wanted: int = 0  # when it was asked last
    _wants: deque[tuple[float, int]] = field(default_factory=deque)

    def copy(self) -> "Scaler":
        return Scaler(self.scale, self.busy_at, self.wanted, deque(self._wants))

    def want(self, demand: int, now: float) -> int:
        self.wanted = self._want(demand, now)
        return self.wanted

    def _want(self, demand: int, now: float) -> int:
        """Up at once, down after a while, and to `least` (which may be 0) when idle."""
        scale = self.scale
        if demand:
            self.busy_at = now
        needed = -(-demand // scale.in_flight)
        self._wants.append((now, needed))
        while self._wants[0][0] < now - KEEP_SECONDS:
            self._wants.popleft()
        if now - self.busy_at >= scale.idle:
            return scale.least
        lately = max(1, scale.least, *(count for _, count in self._wants))
        return max(scale.least, min(scale.most, lately + scale.warm))


@dataclass(slots=True)
class Backoff:
    """Pauses between starts that fail one after the other."""

    failures: int = 0
    not_before: float = 0.0

    def failed(self, now: float) -> float:
        """Returns the pause."""
        self.failures = min(self.failures + 1, len(BACKOFF_SECONDS) - 1)
        pause = BACKOFF_SECONDS[self.failures]
        self.not_before = now + pause
        return pause

    def worked(self) -> None:
        self.failures, self.not_before = 0, 0.0
