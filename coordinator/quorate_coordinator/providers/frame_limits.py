"""Bounds what a connected provider sends without being asked: offers and heartbeats, frames that
are refused, and log text.

Assignments bound what it sends in answer. Each of the three kinds has a token bucket of its own, so
that a flood of one does not stop the others. Beyond it the sender gets `Unavailable`: an honest
daemon tries again a little later.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate_coordinator.rate_limits import Buckets
from quorate_coordinator.request_limits import Bounds
from quorate_protocol.refusals import Unavailable


@dataclass(slots=True, init=False)
class FrameLimits:
    """Token buckets by the sender's account."""

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
        """Checks, before a frame is decoded, that not too many of this sender's frames were
        refused.
        """
        _must(self.offences.wait_seconds(sender), "too many of your frames were refused")

    def offended(self, sender: str) -> None:
        """Counts a frame that was refused."""
        self.offences.charge(sender)

    def unasked(self, sender: str) -> None:
        """Counts an offer or a heartbeat."""
        _must(self.unasked_frames.take(sender), "too many offers and heartbeats")

    def logged(self, sender: str, size: int) -> None:
        """Counts a piece of log text; `size` is in characters."""
        _must(self.log_bytes.take(sender, size), "too much log text")


def _must(wait_seconds: float, what: str) -> None:
    if wait_seconds:
        raise Unavailable(what, wait_seconds)
