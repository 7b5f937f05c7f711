"""Run slots: at most one running lease in each (I2).

The numbers follow from the leases and duties; nothing counts them separately.
"""

from collections.abc import Iterable

from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import PREPARING, Execution, Running
from quorate_node.core.terms import Terms
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.units import Hash32, Small, UnixSeconds

RECENT_RUNS = 16


def store_bytes(spec: JobSpec, executions: Iterable[Execution]) -> int:
    """Returns the bytes that the content store must still take for this job and the running ones.

    The node keeps outputs for two weeks after the pay. A job whose output does not fit would run
    without being paid.
    """
    running = [item for item in executions if item.occupies_slot]
    inputs = sum(_input_bytes(item.spec) for item in running if isinstance(item.phase, PREPARING))
    outputs = sum(item.spec.resources.output_bytes for item in running)
    return _input_bytes(spec) + spec.resources.output_bytes + inputs + outputs


def _input_bytes(spec: JobSpec) -> int:
    return spec.image_bytes + sum(item.size_bytes for item in spec.inputs)


def taken(host_class: Hash32, executions: Iterable[Execution], jury: Iterable[JuryDuty]) -> int:
    """Returns how many run slots of a host class are in use."""
    leases = sum(1 for item in executions if item.occupies_slot and item.host_class == host_class)
    return leases + sum(1 for item in jury if item.occupies_slot and item.host_class == host_class)


def free(
    terms: Terms, host_class: Hash32, executions: Iterable[Execution], jury: Iterable[JuryDuty]
) -> int:
    """Returns how many run slots of a host class can take a lease now."""
    return max(0, terms.count(host_class) - taken(host_class, executions, jury))


def free_slots(
    terms: Terms, executions: tuple[Execution, ...], jury: tuple[JuryDuty, ...], is_draining: bool
) -> tuple[FreeSlots, ...]:
    """Returns the free run slots that a heartbeat announces. A draining provider has none."""
    classes = [slot.host.id() for slot in terms.slots]
    return tuple(
        FreeSlots(item, Small(0 if is_draining else free(terms, item, executions, jury)))
        for item in classes
    )


def slot_frees_at(
    terms: Terms,
    host_class: Hash32,
    executions: Iterable[Execution],
    quoted_run: int,
    at: UnixSeconds,
) -> UnixSeconds:
    """Estimates when a run slot will be free (`startBy` of a Decline).

    The estimate is at most `decline_ahead_max` ahead. With a later time the coordinator would give
    the job to another provider. An estimate that is too early only costs a second Assignment.
    """
    ends = [
        _ends_at(item, quoted_run)
        for item in executions
        if item.occupies_slot and item.host_class == host_class
    ]
    soonest = max(min(ends, default=at + 1), at + 1)
    return UnixSeconds(min(soonest, at + terms.limits.decline_ahead_max))


def _ends_at(execution: Execution, quoted_run: int) -> int:
    match execution.phase:
        case Running(started_at, _):
            return started_at + min(quoted_run, execution.spec.max_duration)
        case _:
            assert execution.accept is not None
            return (
                execution.accept.time
                + execution.accept.quoted_fetch_seconds
                + min(quoted_run, execution.spec.max_duration)
            )


def quoted_run_seconds(recent_ms: tuple[int, ...], max_duration: int) -> int:
    """Returns how long a run is expected to take, in seconds.

    It is the longest of the recent runs (in ms), and at most the job's `max_duration` (in s).
    """
    longest = max(recent_ms, default=max_duration * 1000)
    return min(max_duration, -(-longest // 1000))
