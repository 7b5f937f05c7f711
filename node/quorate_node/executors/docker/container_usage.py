"""Measures the run time, CPU time and memory of containers while the executor waits for them."""

from quorate_node.executors.base import cgroups
from quorate_node.executors.base.cgroups import Counters
from quorate_node.executors.base.exit_status import exit_status
from quorate_node.executors.base.hardened_profile import LABEL_MAX_DURATION
from quorate_node.executors.base.process_age import (
    ObservedProcess,
    observe_process,
    seconds_since_boot,
)
from quorate_node.executors.docker.container_record import (
    Inspection,
    exit_code,
    labels,
    process_id,
    unix_seconds,
)
from quorate_protocol.messages.ports import Exit, Usage
from quorate_protocol.units import Milliseconds, Seconds


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
        """Notes that the executor kills the container because its time is over."""
        self._timed_out.add(lease_id)

    def sample(self, lease_id: str, found: Inspection) -> None:
        """Reads the counters of a running container.

        Some engines remove the control group with the container, so that its counters are gone
        later.
        """
        self._sampled[lease_id] = cgroups.process_counters(process_id(found)).at_least(
            self._sampled.get(lease_id, Counters())
        )

    def exit_of(self, lease_id: str, found: Inspection) -> Exit:
        """Exit status and usage of a container that has ended."""
        state = found["State"]
        limit = Seconds(int(labels(found)[LABEL_MAX_DURATION]))
        started, finished = unix_seconds(state["StartedAt"]), unix_seconds(state["FinishedAt"])
        process, ran = self._observed.get(lease_id), finished - started
        if process and started:
            ran = process.ran_seconds(ran, seconds_since_boot())
        if lease_id in self._timed_out:
            ran = max(ran, float(limit))
        wall = Milliseconds(max(0, round(ran * 1000)) if started else 0)
        counters = cgroups.lease_counters(lease_id).at_least(
            self._sampled.get(lease_id, Counters())
        )
        status = exit_status(exit_code(found), wall, limit, bool(state.get("OOMKilled")))
        usage = Usage(
            Milliseconds(min(wall, limit * 1000)), counters.cpu_ms, counters.peak_memory_bytes
        )
        return Exit(status, usage)

    def forget(self, lease_id: str) -> None:
        """Drops what was measured of a removed container."""
        self._sampled.pop(lease_id, None)
        self._observed.pop(lease_id, None)
        self._timed_out.discard(lease_id)
