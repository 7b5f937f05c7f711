"""Marks executions whose log lines their client has read, and says who pays for them (PROTOCOL §4
Outputs and pay).

Lines of a log are output: the client pays for an execution that it has read, whatever becomes of
its job, unless that execution lapses or is faulted. It reads nothing on credit.
"""

from enum import Enum

from quorate_coordinator.core.model.entities import Decided, Ended, Job
from quorate_coordinator.core.model.events import LogRead
from quorate_coordinator.core.model.lease import Declined, Lapsed, Lease, Stopped
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, usd

GIVEN_UP = (Declined, Lapsed, Stopped)


class LogAccess(Enum):
    """Whether a client may read the log lines of an execution."""

    FREE = "free"  # its job is paid for, it is marked as read already, or it gave no result
    MARKED = "marked"  # once it is marked as read
    UNPAID = "unpaid"  # once a voucher covers the charge, and while the job runs all that may come
    NONE = "none"  # its job ended without a charge


def access(state: State, job: Job, lease: Lease) -> LogAccess:
    if job.is_readable or has_given_up(lease):
        return LogAccess.FREE
    is_read = lease.assignment_hash in job.read
    if isinstance(job.phase, Decided | Ended):
        if not (job.is_paid_for or is_read):
            return LogAccess.NONE
        return LogAccess.FREE if job.is_covered else LogAccess.UNPAID
    client = state.clients[job.order.client]
    if not (job.is_escrowed or client.is_prepaid):
        return LogAccess.UNPAID
    return LogAccess.FREE if is_read else LogAccess.MARKED


def on_log_read(context: StepContext, event: LogRead) -> None:
    """Raises Refused if the job ended without a charge, or if the client reads on credit."""
    job = context.state.jobs.get(event.job_id)
    if job is None or event.assignment_hash not in job.leases:
        raise Refused(Code.UNKNOWN, f"logs: assignment 0x{event.assignment_hash.hex()}")
    lease = context.state.leases[event.assignment_hash]
    match access(context.state, job, lease):
        case LogAccess.FREE:
            return
        case LogAccess.MARKED:
            context.put(job, read=(*job.read, event.assignment_hash))
            note = f"execution {lease.index}: its client reads its log, and pays for it"
            context.note(job.id, "read", note)
        case LogAccess.NONE:
            raise not_charged()
        case LogAccess.UNPAID:
            raise unpaid(context.state, job)


def has_given_up(lease: Lease) -> bool:
    return isinstance(lease.phase, GIVEN_UP)


def not_charged() -> Refused:
    return Refused(
        Code.WRONG_PHASE,
        "logs: the run ended and is not charged for any execution, so its log is not shown",
    )


def unpaid(state: State, job: Job) -> Refused:
    client = state.clients[job.order.client]
    is_over = isinstance(job.phase, Decided | Ended)
    needed = job.charged_up_to if is_over else Amount(client.charged + client.reserved)
    return Refused(
        Code.NO_VOUCHER,
        f"run 0x{job.id.hex()[:12]}: its output and log are shown once a voucher of at least "
        f"{usd(needed)} USD covers it",
    )
