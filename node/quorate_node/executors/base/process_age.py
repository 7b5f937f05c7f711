"""Measures how long a container's process has run, by a clock that does not jump.

An engine reports when a container started and ended by the machine's UTC clock alone. If that
clock jumped by an hour, every running job would look as if it had timed out. The result would be
wrong and an honest provider would get a fault. The kernel knows the age of a process by a clock
that never jumps. It is read while the container runs, and bounds what the engine reports.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

# A program cannot run longer than its process lives; two clocks may differ by this much.
LONGER_MAX_SECONDS = 2.0
# An engine records the start only after the set-up, which takes long on a busy machine.
SHORTER_MAX_SECONDS = 30.0
_START_FIELD = 19  # of /proc/PID/stat after the name: ticks after boot


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """A process that ran when it was observed. Both times are seconds after the machine's boot."""

    started_at: float
    observed_at: float

    def ran_seconds(self, reported: float, now: float) -> float:
        """Returns how long the process ran, if it has ended by `now` (seconds after boot).

        Returns what the engine reported if that is possible, else the longest possible time.
        """
        least, most = self.observed_at - self.started_at, now - self.started_at
        is_possible = least - SHORTER_MAX_SECONDS <= reported <= most + LONGER_MAX_SECONDS
        return reported if is_possible else most

    def age_seconds(self, by_clock: float) -> float:
        """Returns how long the process had run when it was observed.

        `by_clock` is the age by the UTC clock.
        """
        return self.ran_seconds(by_clock, self.observed_at)


def seconds_since_boot() -> float:
    """Returns the seconds since the machine's boot, including time in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def observe_process(pid: int) -> ObservedProcess | None:
    """Returns the process as it is now, or None if it has ended or its engine is on another
    machine.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # not on this machine: the caller has only the engine's report
    started_at = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return ObservedProcess(started_at, seconds_since_boot())
