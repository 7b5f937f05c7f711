"""Compares the core's leases with the containers that the executor has after a restart. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from quorate_node.core import events
from quorate_node.core.jury_duty import JuryDuty, Repeating
from quorate_node.core.phases import PREPARING, Execution, Live, Publishing, Running, Starting
from quorate_node.core.terms import Terms
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.units import Address, Hash32

CHANGED = "driver, sandbox or slots changed since it was accepted"


class Reconciled(Struct, frozen=True):
    """`failures` are events for the core; `strays` are containers and pins to remove."""

    failures: tuple[events.TaskFailed, ...]
    strays: tuple[str, ...]


def reconcile(
    desired: Iterable[Execution],
    jury: Iterable[JuryDuty],
    observed: Mapping[str, TaskState],
    terms: Terms,
) -> Reconciled:
    """Compares leases with what the executor says of their containers. A lease that ran and lost
    its container lapses and never runs twice. One in Publishing goes on: its output may be on disk.
    One that has not begun lapses if the machine's class is no longer the one that it accepted.
    """
    failures: list[events.TaskFailed] = []
    wanted: set[str] = set()
    for item in desired:
        state = observed.get(item.lease_id, TaskState.ABSENT)
        if isinstance(item.phase, Starting | Running | Live | Publishing):
            wanted.add(item.lease_id)
        if isinstance(item.phase, Running | Live) and state is TaskState.ABSENT:
            failures.append(
                events.TaskFailed(
                    item.assignment_hash, "its container was gone when the daemon started again"
                )
            )
        is_new = isinstance(item.phase, PREPARING) and state is TaskState.ABSENT
        if is_new and terms.class_of(item.pool, item.spec) != item.class_id:
            failures.append(events.TaskFailed(item.assignment_hash, CHANGED))
    wanted |= _repeated(jury)
    return Reconciled(tuple(failures), tuple(sorted(set(observed) - wanted)))


def unwanted_pins(
    desired: Iterable[Execution], jury: Iterable[JuryDuty], pinned: Iterable[str]
) -> tuple[str, ...]:
    """Such pins are left when the daemon crashes before it removes them."""
    return tuple(sorted(set(pinned) - {item.lease_id for item in desired} - _repeated(jury)))


def _repeated(jury: Iterable[JuryDuty]) -> set[str]:
    return {
        jury_lease_id(duty.case_id, duty.juror)
        for duty in jury
        if isinstance(duty.phase, Repeating)
    }


def jury_lease_id(case_id: Hash32, juror: Address) -> str:
    """With the juror's address, because jurors may share a container engine."""
    return f"case-{case_id.hex()[:16]}-{juror.hex()[:16]}"
