"""Measures the run time, CPU time and memory of containers while the executor waits for them."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from quorate_node.executors.base import cgroups, mounts
from quorate_node.executors.base.cgroups import Counters
from quorate_node.executors.base.hardened_profile import LABEL_MAX_DURATION
from quorate_node.executors.base.lease import exit_status
from quorate_protocol.messages.ports import Exit, TaskState, Usage
from quorate_protocol.units import Milliseconds, Seconds

Inspection = Mapping[str, "Mapping[str, object]"]
_COULD_NOT_START = (126, 127)


def container_state(found: Inspection | None) -> TaskState:
    """ABSENT if there is no container or it never started."""
    if found is None:
        return TaskState.ABSENT
    match found["State"]["Status"]:
        case "running" | "paused" | "restarting":
            return TaskState.RUNNING
        case "exited" | "dead":
            return TaskState.EXITED
        case "created" if found["State"]["ExitCode"] in _COULD_NOT_START:
            return TaskState.EXITED
        case _:
            # It is being removed, or a crash came between create and start.
            return TaskState.ABSENT


def exit_code(found: Inspection) -> int:
    code = found["State"]["ExitCode"]
    assert isinstance(code, int), "the engine gives the exit code as a number"
    return code


def process_id(found: Inspection) -> int:
    """Returns 0 if it has ended."""
    pid = found["State"]["Pid"]
    assert isinstance(pid, int), "the engine gives the process id as a number"
    return pid


def labels(found: Inspection) -> Mapping[str, str]:
    value = found["Config"]["Labels"]
    assert isinstance(value, dict), "every container that the executor makes has labels"
    return value


def unix_seconds(text: object) -> float:
    """Returns the engine's RFC 3339 time with nanoseconds as Unix seconds; 0 for its zero time."""
    value = str(text)
    return 0.0 if value.startswith("0001-") else datetime.fromisoformat(value).timestamp()


# Measures how long a container's process has run, by a clock that does not jump.
#
# An engine reports when a container started and ended by the machine's UTC clock alone. If that
# clock jumped by an hour, every running job would look as if it had timed out. The result would
# be wrong and an honest provider would get a fault. The kernel knows the age of a process by a
# clock that never jumps. It is read while the container runs, and bounds what the engine reports.

# A program cannot run longer than its process lives; two clocks may differ by this much.
LONGER_MAX_SECONDS = 2.0
# An engine records the start only after the set-up, which takes long on a busy machine.
SHORTER_MAX_SECONDS = 30.0
_START_FIELD = 19  # of /proc/PID/stat after the name: ticks after boot


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """A process when it was observed. Both times are seconds after the machine's boot."""

    started_at: float
    observed_at: float

    def ran_seconds(self, reported: float, now: float) -> float:
        """Returns what the engine reported if that is possible, else the longest possible time."""
        least, most = self.observed_at - self.started_at, now - self.started_at
        is_possible = least - SHORTER_MAX_SECONDS <= reported <= most + LONGER_MAX_SECONDS
        return reported if is_possible else most

    def age_seconds(self, by_clock: float) -> float:
        """`by_clock` is the age by the UTC clock."""
        return self.ran_seconds(by_clock, self.observed_at)


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def observe_process(pid: int) -> ObservedProcess | None:
    """None if it has ended or its engine is on another machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # not on this machine: the caller has only the engine's report
    started_at = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return ObservedProcess(started_at, seconds_since_boot())


def hears_sigterm(pid: int) -> bool:
    """Whether a container's first process is an init with a program, to which it passes SIGTERM on.
    Before, the kernel drops the signal, or it ends the runtime, whose exit code is none of a
    program.
    """
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    except OSError:
        return True  # it has ended, or its engine is on another machine


# An engine watches for memory kills only once it has recorded the start. It has not seen the kill
# of a program that ran no longer than this by its record.
UNWATCHED_SECONDS = 1.0


def _is_memory_kill(found: Inspection, ran: float, peak_memory_bytes: int) -> bool:
    """Whether a SIGKILL was for memory: by the engine, or by the kernel before the engine
    watched.
    """
    memory_max = found["HostConfig"]["Memory"]
    assert isinstance(memory_max, int), "every container that the executor makes has a limit"
    reached = peak_memory_bytes >= memory_max and ran < UNWATCHED_SECONDS
    return reached or bool(found["State"].get("OOMKilled"))


class ContainerUsage:
    """The executor's measurements of each lease's container while it ran."""

    def __init__(self) -> None:
        self._sampled: dict[str, Counters] = {}
        self._observed: dict[str, ObservedProcess] = {}
        self._timed_out: set[str] = set()  # leases whose container was killed at its time limit

    def remaining_seconds(self, lease_id: str, found: Inspection, now: float) -> float:
        """Returns the seconds until a running container's time limit.

        `now` is the machine's UTC clock.
        """
        process = observe_process(process_id(found))
        if process is not None:
            self._observed[lease_id] = process
        by_clock = now - unix_seconds(found["State"]["StartedAt"])
        ran = process.age_seconds(by_clock) if process else by_clock
        return int(labels(found)[LABEL_MAX_DURATION]) - ran

    def mark_timed_out(self, lease_id: str) -> None:
        self._timed_out.add(lease_id)

    def sample(self, lease_id: str, found: Inspection) -> None:
        """Some engines remove the control group with the container, and its counters."""
        self._sampled[lease_id] = cgroups.process_counters(process_id(found)).at_least(
            self._sampled.get(lease_id, Counters())
        )

    def exit_of(self, lease_id: str, found: Inspection, folder: Path) -> Exit:
        state = found["State"]
        limit = Seconds(int(labels(found)[LABEL_MAX_DURATION]))
        started, finished = unix_seconds(state["StartedAt"]), unix_seconds(state["FinishedAt"])
        process, ran = self._observed.get(lease_id), finished - started
        if process and started:
            ran = process.ran_seconds(ran, seconds_since_boot())
        if lease_id in self._timed_out:
            ran = max(ran, float(limit))
        # An engine may record the start after the end of a short program that did run.
        wall = Milliseconds(max(1, round(ran * 1000)) if started else 0)
        counters = cgroups.lease_counters(lease_id).at_least(
            self._sampled.get(lease_id, Counters())
        )
        is_memory_kill = _is_memory_kill(found, ran, counters.peak_memory_bytes)
        status = exit_status(exit_code(found), wall, limit, is_memory_kill)
        usage = Usage(
            Milliseconds(min(wall, limit * 1000)), counters.cpu_ms, counters.peak_memory_bytes
        )
        return Exit(status, usage, mounts.full_volumes(folder))

    def forget(self, lease_id: str) -> None:
        self._sampled.pop(lease_id, None)
        self._observed.pop(lease_id, None)
        self._timed_out.discard(lease_id)
