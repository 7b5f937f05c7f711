"""Simulated clocks of the parties, which may be wrong. The schedule has the true time."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorate_protocol.units import UnixSeconds
from sim.plan import ClockFault
from sim.schedule import Schedule


@dataclass(slots=True)
class Clock:
    """One party's clock; `correct` ends its faults."""

    schedule: Schedule
    start_ms: int
    faults: Sequence[ClockFault]

    def correct(self) -> None:
        """Makes the clock show the true time from now on."""
        self.faults = ()

    @property
    def now_ms(self) -> int:
        """Unix milliseconds, as this party reads them."""
        if not self.faults:
            return self.schedule.now_ms
        elapsed = (self.schedule.now_ms - self.start_ms) / 1000
        return self.schedule.now_ms + round(
            1000 * sum(fault.error(elapsed) for fault in self.faults)
        )

    @property
    def now(self) -> UnixSeconds:
        """Unix seconds, as this party reads them."""
        return UnixSeconds(self.now_ms // 1000)


def clock_of(node: str, schedule: Schedule, faults: Sequence[ClockFault]) -> Clock:
    """A node's clock, from the plan's faults."""
    return Clock(schedule, schedule.now_ms, tuple(fault for fault in faults if fault.node == node))
