"""Limits what a connected provider sends without being asked: offers and heartbeats, frames that
are refused, and log text.

Assignments limit what it sends in answer. Each kind has its own token bucket, so that a flood of
one does not stop the others. Beyond it the sender gets `Unavailable`, and an honest daemon tries
again a little later.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quorate_coordinator.base.rate_limits import TokenBuckets
from quorate_coordinator.base.request_limits import RequestBounds
from quorate_protocol.refusals import Unavailable


@dataclass(slots=True, init=False)
class FrameLimits:
    """Token buckets for each provider's account."""

    offences: TokenBuckets[str]
    unasked_frames: TokenBuckets[str]
    log_bytes: TokenBuckets[str]

    def __init__(self, bounds: RequestBounds, now: Callable[[], float]) -> None:
        def buckets(per_second: float, burst: float) -> TokenBuckets[str]:
            return TokenBuckets(per_second, burst, bounds.buckets_max, now)

        self.offences = buckets(bounds.offences_per_second, bounds.offences_burst)
        self.unasked_frames = buckets(bounds.unasked_per_second, bounds.unasked_burst)
        self.log_bytes = buckets(bounds.log_bytes_per_second, bounds.log_burst_bytes)

    def check(self, sender: str) -> None:
        """Called before a frame is decoded. Raises Unavailable."""
        _must(self.offences.wait_seconds(sender), "too many of your frames were refused")

    def offended(self, sender: str) -> None:
        self.offences.charge(sender)

    def unasked(self, sender: str) -> None:
        _must(self.unasked_frames.take(sender), "too many offers and heartbeats")

    def logged(self, sender: str, size: int) -> None:
        _must(self.log_bytes.take(sender, size), "too much log text")


def _must(wait_seconds: float, what: str) -> None:
    if wait_seconds:
        raise Unavailable(what, wait_seconds)
