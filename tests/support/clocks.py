"""Clocks that a test sets. A call returns seconds, as `time.time` does."""

import time


class SetClock:
    """A clock that shows the time that the test sets."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


class WrongClock:
    """The machine's wall clock with an error that the test sets."""

    def __init__(self) -> None:
        self.error = 0.0

    def __call__(self) -> float:
        return time.time() + self.error
