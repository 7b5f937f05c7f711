"""What counts for and against owners: how the executions of a paid job ended (PROTOCOL 4.40)."""

from quorate_coordinator.core.matching import offers, work_windows
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Job, Provider
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.units import Outcome


def count(context: StepContext, job: Job, verdict: Verdict, ended: list[Lease]) -> list[Lease]:
    """Changes the windows of a decided job's owners and of its client.

    Returns the executions for the public log. Without an accepted and charged result these are only
    the revealed ones: an order that costs nothing must say nothing of those who got it.
    """
    if verdict.outcome is not Outcome.ACCEPTED or not job.is_paid_for:
        return [lease for lease in ended if isinstance(lease.phase, leases.Revealed)]
    for lease in ended:
        if isinstance(lease.phase, leases.Revealed | leases.Silent):
            work_windows.widen(context, lease)
            work_windows.widen_client(context, job.submission.order.message.client)
        elif isinstance(lease.phase, leases.Lapsed) and not lease.phase.is_excused:
            work_windows.halve(context, lease)
    return ended


def was_promised(provider: Provider, job: Job, lease: Lease) -> bool:
    """Whether the provider's offer covers such a job at such a price."""
    offer, assignment = provider.offer, lease.assignment.message
    slot = offers.slot_offer(offer, assignment.host_class) if offer is not None else None
    if offer is None or slot is None or assignment.price_per_hour < offers.price_of(slot):
        return False
    return offers.fits(offer, slot, job.submission.spec)
