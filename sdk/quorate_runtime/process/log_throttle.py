"""Logs a failure that lasts: when it begins, once an hour while it lasts, and when it ends.

Without this a full disk would log a line every two seconds, which hides all others and fills the
disk further.
"""

import logging

from quorate_protocol.ports import Clock

LOG_EVERY_SECONDS = 3_600.0


class LogThrottle:
    """Logs the failures of one thing. Its message may change while the failure lasts."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._logged_at: float | None = None

    def failed(self, sentence: str) -> None:
        """Counts one more failure.

        It logs `sentence` if this is the first failure or the last log line is old.
        """
        now = self._clock.now()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            self._log.warning("%s", sentence)

    def recovered(self, sentence: str) -> None:
        """Counts a success; logs `sentence` if there was a failure before."""
        if self._logged_at is not None:
            self._logged_at = None
            self._log.info("%s", sentence)
