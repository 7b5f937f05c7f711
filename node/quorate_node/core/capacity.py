"""Run slots and their GPUs: at most one running lease in each (I2).

What is free follows from the leases and duties; nothing counts it separately. So no GPU is given
twice, also after a restart that finds other GPUs or makes other slots of them.
"""

from collections.abc import Iterable

from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import PREPARING, Execution, Live, Running
from quorate_node.core.terms import RunSlots, Terms
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.units import Hash32, Small, UnixSeconds
from quorate_protocol.values import replace

RECENT_RUNS = 16


def store_bytes(spec: JobSpec, executions: Iterable[Execution]) -> int:
    """Returns the bytes that the store must still take. Outputs stay two weeks after the pay:
    without room for its output a job would not be paid.
    """
    running = [item for item in executions if item.is_under_way]
    inputs = sum(item.spec.input_bytes() for item in running if isinstance(item.phase, PREPARING))
    outputs = sum(item.spec.resources.output_bytes for item in running)
    return spec.store_bytes() + inputs + outputs


def taken(pool: Hash32, executions: Iterable[Execution], jury: Iterable[JuryDuty]) -> int:
    leases = sum(1 for item in executions if item.occupies_slot and item.pool == pool)
    return leases + sum(1 for item in jury if item.occupies_slot and item.pool == pool)


def held_gpus(executions: Iterable[Execution], jury: Iterable[JuryDuty]) -> frozenset[str]:
    """Returns the UUIDs of the GPUs in use, of every class."""
    leases = [uuid for item in executions if item.occupies_slot for uuid in item.gpus]
    duties = [uuid for item in jury if item.occupies_slot for uuid in item.gpus]
    held = frozenset((*leases, *duties))
    assert len(held) == len(leases) + len(duties), "I2: a GPU is in two leases"
    return held


def check_room(
    terms: Terms, begun: Execution, executions: Iterable[Execution], jury: Iterable[JuryDuty]
) -> None:
    executions, jury, pool = tuple(executions), tuple(jury), begun.pool
    slot = terms.slot(pool)
    assert slot is not None and len(begun.gpus) == (slot.pool.gpus * slot.pool.is_gpu), (
        "I2: a lease in a GPU slot has all GPUs of the slot"
    )
    assert slot.pool.is_gpu or taken(pool, executions, jury) <= slot.count, (
        "I2: more running leases than slots"
    )
    held_gpus(executions, jury)


def present_groups(slots: RunSlots, gone: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(group for group in slots.groups if gone.isdisjoint(group))


def free_groups(
    terms: Terms,
    pool: Hash32,
    executions: Iterable[Execution],
    jury: Iterable[JuryDuty],
    gone: frozenset[str],
) -> tuple[tuple[str, ...], ...]:
    """Returns what a lease can get now. A GPU that a lease of any class has blocks its group."""
    slots = terms.run_slots(pool)
    if slots is None or not slots.groups:
        return ()
    unusable = gone | held_gpus(executions, jury)
    return tuple(group for group in slots.groups if unusable.isdisjoint(group))


def free(
    terms: Terms,
    pool: Hash32,
    executions: tuple[Execution, ...],
    jury: tuple[JuryDuty, ...],
    gone: frozenset[str] = frozenset(),
) -> int:
    """Returns how many run slots of a pool can take a lease now."""
    slots = terms.run_slots(pool)
    if slots is not None and slots.offer.pool.is_gpu:
        return len(free_groups(terms, pool, executions, jury, gone))
    return max(0, terms.count(pool) - taken(pool, executions, jury))


def spot_rentals(terms: Terms, executions: Iterable[Execution]) -> list[Execution]:
    """Returns those that have a run slot, and end in need of their machine."""
    spot = {slot.pool.id() for slot in terms.slots if slot.spot}
    held = (item for item in executions if item.occupies_slot and item.pool in spot)
    return [item for item in held if item.is_rental and item.spec.spot]


def yielding(
    terms: Terms, pool: Hash32, executions: Iterable[Execution], gone: frozenset[str]
) -> list[Execution]:
    """Returns the spot rentals that end for rentals on demand, or do so already."""
    slot = terms.slot(pool)
    if slot is None or not slot.has_two_prices:
        return []
    held = spot_rentals(terms, executions)
    return [item for item in held if item.pool == pool and gone.isdisjoint(item.gpus)]


def waiting(executions: Iterable[Execution], pool: Hash32) -> list[Execution]:
    """Returns the rentals that wait for the run slot of a spot rental."""
    return [it for it in executions if it.is_under_way and not it.has_slot and it.pool == pool]


def free_slots(
    terms: Terms,
    executions: tuple[Execution, ...],
    jury: tuple[JuryDuty, ...],
    is_draining: bool,
    gone: frozenset[str] = frozenset(),
) -> tuple[FreeSlots, ...]:
    classes = [slot.pool.id() for slot in terms.slots]
    return tuple(
        FreeSlots(
            item,
            free=Small(0 if is_draining else free(terms, item, executions, jury, gone)),
            preemptible=Small(0),
        )
        for item in classes
    )


def offered(terms: Terms, gone: frozenset[str]) -> tuple[SlotOffer, ...]:
    """Returns the slots to offer: a GPU slot of which a GPU is gone is not among them."""
    found = []
    for item in terms.classes:
        count = len(present_groups(item, gone)) if item.offer.pool.is_gpu else item.offer.count
        if count:
            found.append(replace(item.offer, count=Small(count)))
    return tuple(found)


def slot_frees_at(
    terms: Terms, pool: Hash32, executions: Iterable[Execution], quoted_run: int, at: UnixSeconds
) -> UnixSeconds:
    """Estimates `startBy` of a Decline, at most `decline_ahead_max` ahead: with a later time the
    coordinator would give the job away. Too early only costs a second Assignment.
    """
    ends = [
        _ends_at(item, quoted_run)
        for item in executions
        if item.occupies_slot and item.pool == pool
    ]
    soonest = max(min(ends, default=at + 1), at + 1)
    return UnixSeconds(min(soonest, at + terms.limits.decline_ahead_max))


def _ends_at(execution: Execution, quoted_run: int) -> int:
    match execution.phase:
        case Running(started_at, _):
            return started_at + min(quoted_run, execution.spec.max_duration)
        case Live(started_at):
            return started_at + execution.spec.max_duration
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
