"""The clock of daemons. No other module reads the time."""

import asyncio
import logging
import time
from collections.abc import Callable

JUMP_SECONDS = 30.0  # the clock follows a smaller step at once; time services make such steps
DOUBT_SECONDS = 120.0  # how long a jump must last before the clock follows it

log = logging.getLogger(__name__)


def _since_boot() -> float:
    """Returns the seconds since the machine started. They go on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """`ports.Clock` over the machine's UTC clock.

    It may step back. The actor still gives its events times that never decrease.

    The clock follows a jump of more than JUMP_SECONDS only after `doubt_seconds`. After a virtual
    machine moved, or a time service erred, the clock may soon jump back. If this clock followed at
    once, every lease would lapse, and the journal would keep events with times in the future.

    `witness` tells it the times of new blocks. The clock never follows a jump away from them.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = _since_boot,
        doubt_seconds: float = DOUBT_SECONDS,
    ) -> None:
        self._wall, self._steady, self._doubt_seconds = wall, steady, doubt_seconds
        self._believed, self._at = wall(), steady()
        self._doubted_at: float | None = None
        self._is_contradicted = False
        # The newest time that `witness` got, and the steady clock's time at that moment.
        self._witnessed: tuple[float, float] | None = None

    def now(self) -> float:
        wall, steady = self._wall(), self._steady()
        expected = self._believed + steady - self._at
        if abs(wall - expected) > JUMP_SECONDS and not self._is_followed(wall, expected, steady):
            return expected
        self._believed, self._at, self._doubted_at, self._is_contradicted = (
            wall,
            steady,
            None,
            False,
        )
        return wall

    def witness(self, seconds: float) -> None:
        """Takes the time (Unix seconds) that something new elsewhere has, such as a block."""
        self._witnessed = seconds, self._steady()

    def _is_followed(self, wall: float, expected: float, steady: float) -> bool:
        if not self._is_old_doubt(wall - expected, steady):
            return False
        if self._witnessed is None:
            return True  # there is no block time to compare with
        theirs = self._witnessed[0] + steady - self._witnessed[1]
        is_theirs = abs(wall - theirs) < abs(expected - theirs)
        if not is_theirs and not self._is_contradicted:
            log.error(
                "the machine's clock is wrong by %.0f s, compared with new blocks, and is not "
                "followed: set it right",
                wall - theirs,
            )
            self._is_contradicted = True
        return is_theirs

    def _is_old_doubt(self, jump: float, steady: float) -> bool:
        if self._doubted_at is None:
            self._doubted_at = steady
            log.error(
                "the machine's clock jumped by %.0f s; the daemon follows in %.0f s if it stays so",
                jump,
                self._doubt_seconds,
            )
        return steady - self._doubted_at >= self._doubt_seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
