"""Logs a failure that lasts: when it begins, from time to time while it lasts, and when it ends.

Without this a full disk would log a line every two seconds, which hides all others and fills the
disk further.
"""

import logging

from quorate_protocol.messages.ports import Clock

PAUSE_FIRST_SECONDS = 60.0
PAUSE_LONGEST_SECONDS = 3_600.0


class LogThrottle:
    """Logs the failures of one thing. Its message may change while the failure lasts. The pause
    after the first line is a minute, and doubles up to an hour.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._logged_at: float | None = None
        self._pause, self._unlogged = PAUSE_FIRST_SECONDS, 0

    def failed(self, sentence: str) -> None:
        """Counts one more failure. It logs `sentence` if this is the first failure or the last log
        line is old. The line says how many failures had none.
        """
        now = self._clock.now()
        if self._logged_at is None:
            self._log.warning("%s", sentence)
        elif now - self._logged_at < self._pause:
            self._unlogged += 1
            return
        else:
            self._log.warning("%s (%d more times since the last line)", sentence, self._unlogged)
            self._pause = min(2 * self._pause, PAUSE_LONGEST_SECONDS)
        self._logged_at, self._unlogged = now, 0

    def recovered(self, sentence: str = "") -> None:
        """Counts a success; logs `sentence`, if any, after a failure."""
        if self._logged_at is not None:
            self._logged_at, self._pause, self._unlogged = None, PAUSE_FIRST_SECONDS, 0
            if sentence:
                self._log.info("%s", sentence)
