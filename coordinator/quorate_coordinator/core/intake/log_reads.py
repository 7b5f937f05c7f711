"""Marks executions of which the client has read log lines (PROTOCOL §4 Outputs and pay).

Lines of a log are output: the client pays for an execution that it has read, whatever becomes of
its job, unless that execution lapses or is faulted.
"""

from quorate_coordinator.core.entities import Decided, Ended
from quorate_coordinator.core.events import LogRead
from quorate_coordinator.core.lease import Declined, Lapsed, Lease, Stopped
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.refusals import Code, Refused

GIVEN_UP = (Declined, Lapsed, Stopped)


def on_log_read(context: StepContext, event: LogRead) -> None:
    """Marks an execution as read. Raises Refused if the job ended without a charge: then nobody may
    read its log.
    """
    job = context.state.jobs.get(event.job_id)
    if job is None or event.assignment_hash not in job.leases:
        raise Refused(Code.UNKNOWN, f"logs: assignment 0x{event.assignment_hash.hex()}")
    lease = context.state.leases[event.assignment_hash]
    if job.is_readable or event.assignment_hash in job.read or has_given_up(lease):
        return
    if isinstance(job.phase, Decided | Ended):
        raise Refused(
            Code.WRONG_PHASE,
            "logs: the run ended and is not charged for any execution, so its log is not shown",
        )
    context.put(job, read=(*job.read, event.assignment_hash))
    context.note(
        job.id, "read", f"execution {lease.index}: its client reads its log, and pays for it"
    )


def has_given_up(lease: Lease) -> bool:
    """Whether an execution ended without a result. Nobody pays it, and its client may read why."""
    return isinstance(lease.phase, GIVEN_UP)
