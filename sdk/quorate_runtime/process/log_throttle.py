"""A trouble that lasts, for the log: told when it begins, now and then while it goes on, and
when it is over. A line every two seconds for as long as a disk is full hides all others, and
fills the disk further.
"""

import logging

from quorate_protocol.ports import Clock

TOLD_EVERY_SECONDS = 3_600.0


class LogThrottle:
    """One thing that may fail again and again. What it says of itself may change while it lasts:
    that is no new trouble.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._told_at: float | None = None

    def lasts(self, sentence: str) -> None:
        """It failed once more."""
        now = self._clock.now()
        if self._told_at is None or now - self._told_at >= TOLD_EVERY_SECONDS:
            self._told_at = now
            self._log.warning("%s", sentence)

    def is_over(self, sentence: str) -> None:
        """It went well; `sentence` is told if it had failed before."""
        if self._told_at is not None:
            self._told_at = None
            self._log.info("%s", sentence)
