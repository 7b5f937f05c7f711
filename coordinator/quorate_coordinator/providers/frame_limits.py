"""How much a connected provider may send that nobody asked for, that is refused, or that is only
logs.

What it answers to assignments is bounded by the assignments; each of these three is a token
bucket of its own, so that a flood of one kind does not stop the others. Too much is
`Unavailable`: an honest daemon comes again a little later.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate_coordinator.rate_limits import Buckets
from quorate_coordinator.request_limits import Bounds
from quorate_protocol.refusals import Unavailable


@dataclass(slots=True, init=False)
class FrameLimits:
    """Buckets by the sender's account."""

    offences: Buckets[str]
    unasked_frames: Buckets[str]
    log_bytes: Buckets[str]

    def __init__(self, bounds: Bounds, now: Callable[[], float]) -> None:
        self.offences = Buckets(
            bounds.offences_per_second, bounds.offences_burst, bounds.buckets_max, now
        )
        self.unasked_frames = Buckets(
            bounds.unasked_per_second, bounds.unasked_burst, bounds.buckets_max, now
        )
        self.log_bytes = Buckets(
            bounds.log_bytes_per_second, bounds.log_burst_bytes, bounds.buckets_max, now
        )

    def check(self, sender: str) -> None:
        """Before anything of a frame is looked at."""
        _must(self.offences.wait_seconds(sender), "too many of your frames were refused")

    def offended(self, sender: str) -> None:
        """A frame was refused."""
        self.offences.charge(sender)

    def unasked(self, sender: str) -> None:
        """An offer or a heartbeat."""
        _must(self.unasked_frames.take(sender), "too many offers and heartbeats")

    def logged(self, sender: str, size: int) -> None:
        """A piece of log."""
        _must(self.log_bytes.take(sender, size), "too much log text")


def _must(wait_seconds: float, what: str) -> None:
    if wait_seconds:
        raise Unavailable(what, wait_seconds)
