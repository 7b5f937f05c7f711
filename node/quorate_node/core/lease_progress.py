"""What a heartbeat says of the leases on which this provider works."""

from collections.abc import Iterable

from quorate_node.core.phases import Execution, Publishing, Running, Starting
from quorate_protocol.limits import HEARTBEAT_LEASES_MAX
from quorate_protocol.messages.signed import LeaseProgress
from quorate_protocol.units import Address, WorkStage


def named(executions: Iterable[Execution], coordinator: Address) -> tuple[LeaseProgress, ...]:
    """Returns the leases of one coordinator that have no Commit yet. A lease that no heartbeat
    names for long lapses there.
    """
    found = [
        LeaseProgress(item.assignment_hash, _stage(item))
        for item in executions
        if item.occupies_slot and item.coordinator == coordinator
    ]
    return tuple(found[:HEARTBEAT_LEASES_MAX])


def _stage(execution: Execution) -> WorkStage:
    match execution.phase:
        case Starting():
            return WorkStage.STARTING
        case Running():
            return WorkStage.RUNNING
        case Publishing():
            return WorkStage.STORING
        case _:
            return WorkStage.FETCHING
