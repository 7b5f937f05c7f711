"""Writes what rentals paid into the public log: at their end, and before each payroll."""

from quorate_coordinator.core.audit import summaries
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Job, Rented
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import transactions
from quorate_protocol.messages.signed import ExecutionSummary
from quorate_protocol.units import Amount, ExecutionEnd, Milliseconds, Role, Seconds
from quorate_protocol.values import replace


def write_before_payroll(context: StepContext) -> None:
    """So that the log's root in a payroll covers what it pays (PROTOCOL 6.73)."""
    if not transactions.is_payroll_due(context):
        return
    for job_id in list(context.state.live.keys()):
        job = context.state.jobs[job_id]
        if isinstance(job.phase, Rented):
            write(context, job, ExecutionEnd.RENTED)


def write(context: StepContext, job: Job, how: ExecutionEnd) -> Job:
    """Nothing if nothing was paid since its last line, and its end is no fault."""
    phase = job.phase
    assert isinstance(phase, Rented)
    lease = context.state.leases[phase.assignment_hash]
    assert isinstance(lease.phase, leases.Live)
    paid = job.split.credits[0].amount if job.split.credits else Amount(0)
    pay = Amount(paid - phase.logged)
    if not pay and (how is ExecutionEnd.RENTED or not paid):
        return job
    usage = lease.phase.usage_ms
    line = ExecutionSummary(
        provider=lease.provider,
        role=Role.PRIMARY,
        end=how,
        is_counted=False,
        pay=pay,
        usage_ms=Milliseconds(usage - phase.logged_ms),
        quoted_seconds=Seconds(0),
        took_seconds=Seconds(0),
    )
    summaries.publish(context, summaries.line_of(context, job, [line]))
    return context.put(job, phase=replace(phase, logged=paid, logged_ms=usage))
