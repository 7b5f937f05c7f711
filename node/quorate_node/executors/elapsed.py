"""How long a container has run, for whoever must not be fooled by a clock that jumps.

An engine tells when a container started and ended by the machine's UTC clock alone. Were that
believed, a jump of an hour would turn every running job into one that timed out: a wrong result,
and a fault of an honest provider. The kernel knows the age of a process by the clock that only
ever goes on; it is asked while the container runs, and bounds what the engine says.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

LONGER_SECONDS = (
    2.0  # no program runs longer than its process lives; this much for what clocks differ in
)
SHORTER_SECONDS = (
    30.0  # but the engine says "started" only once all is set up, on a busy machine much later
)
_START_FIELD = 19  # of /proc/PID/stat behind the name: ticks after boot


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that was seen to run. `began` and `looked` are seconds after the machine's boot."""

    began: float
    looked: float

    def ran(self, told: float, now: float) -> float:
        """Seconds that it ran, by now ended: what the engine told if that can be, else the most
        that it can have been.
        """
        least, most = self.looked - self.began, now - self.began
        return told if least - SHORTER_SECONDS <= told <= most + LONGER_SECONDS else most

    def age(self, told: float) -> float:
        """Seconds that it has run when it was looked at; `told` is what the machine's clock
        makes of it.
        """
        return self.ran(told, self.looked)


def since_boot() -> float:
    """Seconds since boot, a suspended machine's included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def look(pid: int) -> Seen | None:
    """The process as it is now; None when it has ended, or belongs to an engine on another
    machine.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # not here: then the engine's word is all there is
    return Seen(int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK"), since_boot())
