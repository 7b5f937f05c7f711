"""Orders with an escrow of their own: the chain pays their executions (PROTOCOL 6.74 to 6.81)."""

from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import PayOrder, ReleaseOrder, ShowExecution, ShownRun
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import receipts
from quorate_protocol.messages.frames import EscrowedOrder
from quorate_protocol.messages.signed import Order, Verdict
from quorate_protocol.units import UnixSeconds

UNCOMMITTED = (leases.Declined, leases.Lapsed, leases.Stopped)


def show_accepted(context: StepContext, job: Job, verdict: Verdict) -> None:
    order, window = job.order, context.rules.limits.evidence_window
    members = [context.state.leases[digest] for digest in verdict.group]
    for lease in members:
        run = shown(context, lease)
        context.emit(ShowExecution(f"show-{lease.assignment_hash.hex()}", order, run))
    if members:
        providers = tuple(sorted(lease.provider for lease in members))
        not_before = UnixSeconds(context.at + window)
        context.emit(PayOrder(f"pay-{job.id.hex()}", order, providers, not_before))


def release(context: StepContext, job: Job) -> None:
    found = (context.state.leases[digest] for digest in job.leases)
    if job.is_escrowed and all(isinstance(lease.phase, UNCOMMITTED) for lease in found):
        give_back(context, job.order)


def give_back(context: StepContext, order: Order) -> None:
    """Nobody has executed the order, and nobody will."""
    context.emit(ReleaseOrder(f"release-{context.digest(order).hex()}", order))


def order_of(job: Job, lease: Lease) -> EscrowedOrder | None:
    """What an owner needs to show its execution without this coordinator."""
    return EscrowedOrder(job.order, lease.index) if job.is_escrowed else None


def shown(context: StepContext, lease: Lease) -> ShownRun:
    phase = lease.phase
    assert isinstance(phase, leases.Revealed), "only a revealed execution is shown"
    receipt = receipts.commit_receipt(context.rules, phase.commit, phase.committed_at)
    return ShownRun(lease.index, lease.blind, lease.assignment, phase.commit, receipt, phase.reveal)
