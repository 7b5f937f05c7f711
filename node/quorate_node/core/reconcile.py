"""Compares the journal with what the executor still holds after a restart. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from quorate_node.core import events
from quorate_node.core.jury_duty import JuryDuty, Repeating
from quorate_node.core.phases import Execution, Publishing, Running, Starting
from quorate_protocol.ports import TaskState
from quorate_protocol.units import Address, Nonce


class Reconciled(Struct, frozen=True):
    """What a restart found.

    `happened` are events for the machine. `strays` are lease ids that no lease needs; the daemon
    removes them.
    """

    happened: tuple[events.TaskFailed, ...]
    strays: tuple[str, ...]


def reconcile(
    desired: Iterable[Execution], jury: Iterable[JuryDuty], observed: Mapping[str, TaskState]
) -> Reconciled:
    """A lease whose task ran and whose container is gone has failed. It lapses; it is never run
    twice, and its result is never guessed.

    A lease whose output is being published goes on: its output may be on disk already. Containers
    that are still there are left alone, and their pending effects attach to them again.
    """
    happened: list[events.TaskFailed] = []
    wanted: set[str] = set()
    for item in desired:
        state = observed.get(item.lease_id, TaskState.ABSENT)
        if isinstance(item.phase, Starting | Running | Publishing):
            wanted.add(item.lease_id)
        if isinstance(item.phase, Running) and state is TaskState.ABSENT:
            happened.append(
                events.TaskFailed(
                    item.assignment_hash, "its container was gone when the daemon came back"
                )
            )
    wanted |= _repeated(jury)
    return Reconciled(tuple(happened), tuple(sorted(set(observed) - wanted)))


def unwanted_pins(
    desired: Iterable[Execution], jury: Iterable[JuryDuty], pinned: Iterable[str]
) -> tuple[str, ...]:
    """Lease ids for which content is pinned and that no lease needs.

    A crash came before their content was unpinned.
    """
    return tuple(sorted(set(pinned) - {item.lease_id for item in desired} - _repeated(jury)))


def _repeated(jury: Iterable[JuryDuty]) -> set[str]:
    return {
        jury_lease_id(duty.case_id, len(duty.phase.digests), duty.juror)
        for duty in jury
        if isinstance(duty.phase, Repeating)
    }


def jury_lease_id(case_id: Nonce, index: int, juror: Address) -> str:
    """The name of the container in which a juror repeats one execution.

    It names the juror too, because jurors may share an engine.
    """
    return f"case-{case_id}-{index}-{juror.hex()[:16]}"
