"""Takes the meters of rentals, and charges them within what vouchers and credit leave free."""

from quorate_coordinator.core.audit.assignment import step_lease
from quorate_coordinator.core.matching import work_windows
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import Client, Job, Rented
from quorate_coordinator.core.model.events import MeterReceived
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger, payees
from quorate_coordinator.core.rentals import allowances, ends
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import rentals
from quorate_protocol.rules.settlement import Credit, Split
from quorate_protocol.units import Amount, Milliseconds, usd
from quorate_protocol.values import replace


def on_meter(context: StepContext, event: MeterReceived) -> Refused | None:
    """Returns the refusal that ends the rental; the charge before it counts. A meter that is
    refused otherwise changes nothing.
    """
    lease = context.state.leases.get(event.assignment_hash)
    if lease is None or lease.provider != event.provider:
        raise Refused(Code.UNKNOWN, "meter: not of a rental of this provider")
    job = context.state.jobs[lease.job_id]
    if not job.is_rental:
        raise Refused(Code.UNSUPPORTED, "meter: a task names its usage in its Commit")
    if isinstance(lease.phase, leases.Returned) and event.exit_status is not None:
        return None  # it comes again, or the rental had ended before
    if not isinstance(lease.phase, leases.Accepted | leases.Live):
        name = type(lease.phase).__name__
        raise Refused(Code.WRONG_PHASE, f"meter: this rental is over ({name}); end its container")
    usage = _counted(context, job, lease, event.usage_ms)
    before = lease.phase.usage_ms if isinstance(lease.phase, leases.Live) else 0
    if isinstance(lease.phase, leases.Accepted):
        job = _begin(context, job, lease)
    elif usage <= lease.phase.usage_ms and event.exit_status is None:
        return None
    else:
        usage = max(usage, lease.phase.usage_ms)
    lease, _ = step_lease(context, lease, leases.UsageTaken(usage))
    if before < ends.FAILED_WITHIN * 1000 <= usage:
        work_windows.widen(context, lease)
    assert isinstance(job.phase, Rented)
    job = context.put(job, phase=replace(job.phase, heard_at=context.at))
    return _go_on(context, job, lease, event)


def _counted(context: StepContext, job: Job, lease: Lease, usage: Milliseconds) -> Milliseconds:
    """After a Stop, the time until it. Raises Refused if the provider's clock runs ahead.

    Nothing counts, beyond what any start costs, if the Stop came before the first meter.
    """
    assert isinstance(lease.phase, leases.Accepted | leases.Live)
    passed = Milliseconds((context.at - lease.phase.accepted_at + 1) * 1000)
    if usage > passed:
        raise Refused(
            Code.TOO_EARLY,
            f"meter: {usage} ms are named, and {passed} ms passed since the Accept; set the clock",
        )
    if job.stop is not None and not isinstance(job.phase, Rented):
        return Milliseconds(0)
    if isinstance(job.phase, Rented) and job.phase.stop_by:
        stopped_at = job.phase.stop_by - context.rules.limits.commit_grace
        return Milliseconds(min(usage, (stopped_at - lease.phase.accepted_at + 1) * 1000))
    return usage


def _begin(context: StepContext, job: Job, lease: Lease) -> Job:
    phase = Rented(lease.assignment_hash, context.at, context.at)
    context.note(job.id, "started", f"execution {lease.index}: the machine runs")
    return context.put(job, phase=phase, is_started=True)


def _go_on(context: StepContext, job: Job, lease: Lease, event: MeterReceived) -> Refused | None:
    job, lacking = charge(context, job, lease)
    assert isinstance(job.phase, Rented) and isinstance(lease.phase, leases.Live)
    if job.stop is not None:  # whatever else, this meter is the last
        ends.end(context, job, "stopped by its client")
        is_known = event.exit_status is not None
        return None if is_known else Refused(Code.TOO_LATE, "meter: its client stopped it")
    if event.exit_status is not None:
        ends.end(context, job, ends.said_of_exit(job, event.exit_status, lease.phase.usage_ms))
        return None
    if lacking is None and lease.phase.usage_ms >= job.submission.spec.max_duration * 1000:
        lacking = Refused(Code.TOO_LATE, "meter: maxDuration has passed; end the container")
    if lacking is not None:
        ends.end(context, job, lacking.detail.removeprefix("meter: "))
    return lacking


def charge(context: StepContext, job: Job, lease: Lease) -> tuple[Job, Refused | None]:
    """Final at once. Also returns why the rental cannot go on, if it cannot."""
    assert isinstance(lease.phase, leases.Live)
    client, limits = context.state.clients[job.order.client], context.rules.limits
    before, price = job.split, lease.assignment.message.price_per_hour
    fee_bps = job.ack.message.fee_bps
    duration = job.submission.spec.max_duration
    usage = rentals.paid_usage(lease.phase.usage_ms, duration, limits)
    free = free_for(client, job)
    limit = allowances.limit_of(job)
    most = Amount(min(limit, before.charged + free))
    now = rentals.charge_of(usage, price, fee_bps, most)
    charged = Amount(now.total - before.charged)
    assert 0 <= charged <= max(0, free), "I4: a rental is charged beyond what its client signed"
    until = Milliseconds(lease.phase.usage_ms + limits.meter_every * 1000)
    until = rentals.paid_usage(until, duration, limits)
    next_cost = rentals.charge_of(until, price, fee_bps, rentals.UNBOUNDED).total - now.total
    job = _move(context, job, lease, now, charged)
    if now.total and not before.charged:
        work_windows.widen_client(context, client.account)
    if now.total + next_cost > job.order.budget:
        return job, Refused(Code.BAD_AMOUNT, "meter: the order's budget is used up")
    if now.total + next_cost > limit:
        told = f"meter: its client lets it cost {usd(limit)} USD and no more"
        return job, Refused(Code.NO_VOUCHER, told)
    if now.cut or free - charged < next_cost:
        return job, Refused(
            Code.NO_VOUCHER,
            f"meter: its client's voucher does not cover the next {limits.meter_every} s, "
            f"{usd(next_cost)} USD",
        )
    return job, None


def free_for(client: Client, job: Job) -> int:
    """Of the client's voucher and credit. What its other jobs and rentals reserve comes first."""
    others = client.reserved - job.reserved
    return max(0, client.vouched + client.fees_paid - client.charged - others)


def _move(
    context: StepContext, job: Job, lease: Lease, now: rentals.Charge, charged: Amount
) -> Job:
    before = job.split
    fee = Amount(now.fee - before.fee)
    pay = Amount(charged - fee)
    client = context.state.clients[job.order.client]
    client = replace(client, charged=Amount(client.charged + charged))
    context.state.clients[client.account] = client
    own = context.state.own
    context.change_own(fee=Amount(own.fee + fee))
    if pay:
        payees.finish(context, lease.provider, pay, is_held=False)
        payees.wake(context)
    job = context.put(
        job,
        split=Split(now.total, (Credit(lease.assignment_hash, now.pay),), now.fee, Amount(0)),
        charged_up_to=client.charged,
        is_covered=client.vouched >= client.charged,
    )
    left = Amount(max(0, allowances.limit_of(job) - now.total))
    return ledger.lower_reservation(context, job, left)
