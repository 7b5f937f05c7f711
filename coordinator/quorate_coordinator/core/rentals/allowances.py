"""What a client lets each of its rentals cost, within what its vouchers pay for all of them."""

from quorate_coordinator.core.model.entities import Ended, Job, Rented
from quorate_coordinator.core.model.events import AllowanceNamed
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount
from quorate_protocol.values import replace


def limit_of(job: Job) -> Amount:
    budget = job.order.budget
    return budget if job.allowed is None else Amount(min(budget, job.allowed))


def on_allowance(context: StepContext, event: AllowanceNamed) -> None:
    """A lower one, or one of a rental that is over, changes nothing: it came late. The first one
    covers what is charged and reserved already, for which an owner may have worked: at its own
    price once it runs.
    """
    job = context.state.jobs.get(event.job_id)
    if job is None or job.order.client != event.client or not job.is_rental:
        raise Refused(Code.UNKNOWN, "allowance: it is not for a rental of this account")
    least = job.allowed
    if least is None:
        least = Amount(job.split.charged + _owed_ahead(context, job))
    if isinstance(job.phase, Ended) or event.most <= least == job.allowed:
        return
    job = context.put(job, allowed=max(least, event.most))
    _reserve_again(context, job)


def _owed_ahead(context: StepContext, job: Job) -> Amount:
    if not isinstance(job.phase, Rented):
        return job.reserved
    price = context.state.leases[job.phase.assignment_hash].assignment.message.price_per_hour
    ahead = rentals.cost_of(context.rules.limits.rental_ahead, price, job.ack.message.fee_bps)
    return Amount(min(job.reserved, ahead))


def _reserve_again(context: StepContext, job: Job) -> None:
    """As much as a rental reserves, as far as the client's voucher is free for it."""
    client = context.state.clients[job.order.client]
    usual = rentals.reservation(job.order, job.ack.message.fee_bps, context.rules.limits, Amount(0))
    wanted = min(usual, limit_of(job) - job.split.charged)
    free = client.vouched + client.fees_paid - client.charged - client.reserved
    more = min(wanted - job.reserved, free)
    if more > 0:
        reserved = Amount(client.reserved + more)
        context.state.clients[client.account] = replace(client, reserved=reserved)
        context.put(job, reserved=Amount(job.reserved + more))
