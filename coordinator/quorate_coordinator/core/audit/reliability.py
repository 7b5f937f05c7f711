"""Counts how often a provider gives up work, and takes it off offer for that (PROTOCOL §4).

Outright declines, give-ups after an Accept, and lapses are one ratio. Above 20 % of the last 20
answers the provider is neither matched nor drawn for a while, which doubles each time, and does not
count as an owner of its classes. Otherwise it could choose what it audits (I9), and accept audits
only to let honest primaries wait for nothing.

A postponed execution does not count. Nor does what the offer did not promise, because a draw looks
only at the host class, nor what the client ended.
"""

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.entities import Job, Provider
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.units import Address, DeclineReason, Hash32, Seconds, UnixSeconds
from quorate_protocol.values import replace

ANSWERS_KEPT = 20
ANSWERS_LEAST = 5  # with fewer answers, no provider is judged
GIVEN_UP_SHARE = 5  # more than one in five is too much
# Reasons that lie with the client, unless another provider has committed the same job.
_CLIENTS = (DeclineReason.INPUT_UNAVAILABLE, DeclineReason.IMAGE, DeclineReason.BAD_KEY)


def count(context: StepContext, before: Lease, after: Lease, reason: DeclineReason | None) -> None:
    """Counts how a lease ended: with a commit in time, or given up. `reason` is the Decline's."""
    match after.phase:
        case leases.Committed():
            _add(context, after.provider, has_given_up=False)
        case leases.Lapsed(is_job_suspect=True) if not context.state.jobs[after.job_id].commits:
            pass  # `count_suspects` counts it later
        case leases.Declined(start_by=0) | leases.Lapsed() if _is_to_blame(context, before, reason):
            _add(context, after.provider, has_given_up=True)
        case _:
            pass


def count_suspects(context: StepContext, job: Job) -> None:
    """Counts the give-ups of a job that another provider has committed now. Until then the job may
    be at fault: otherwise a client could take all owners off offer with jobs that nobody can run.
    """
    for digest in job.leases:
        lease = context.state.leases[digest]
        phase = lease.phase
        if isinstance(phase, leases.Lapsed) and phase.is_job_suspect and job.stop is None:
            _add(context, lease.provider, has_given_up=True)


def rested(context: StepContext, provider: Provider) -> Provider:
    """Lets a provider work again that was barred, off offer or unsecured until now."""
    return replace(
        provider,
        barred_until=_left(context, provider.barred_until),
        off_offer_until=_left(context, provider.off_offer_until),
        unsecured_until=_left(context, provider.unsecured_until),
    )


def _left(context: StepContext, until: UnixSeconds) -> UnixSeconds:
    return until if context.at < until else UnixSeconds(0)


def owners_on_offer(context: StepContext, host_class: Hash32) -> int:
    """Returns the count of a class's owners, without those that are off offer for giving up."""
    owners = offers.owners_of(context, host_class)
    away = sum(
        owner in owners and bool(context.state.providers[owner].off_offer_until)
        for owner, _ in context.state.off_offer.items()
    )
    return len(owners) - away


def _is_to_blame(context: StepContext, lease: Lease, reason: DeclineReason | None) -> bool:
    job = context.state.jobs[lease.job_id]
    if reason is DeclineReason.UNSECURED:
        return False
    if job.stop is not None or (reason is None and _was_away(context, lease)):
        return False
    if reason in _CLIENTS:
        # What one provider had, others can have: the coordinator keeps inputs while the job runs.
        return bool(job.commits)
    is_outright = reason is not None and isinstance(lease.phase, leases.Assigned)
    return not is_outright or _was_promised(context.state.providers[lease.provider], job, lease)


def _was_away(context: StepContext, lease: Lease) -> bool:
    """Whether a lease ran out while the coordinator was not there to hear of it."""
    phase = lease.phase
    due = phase.commit_by if isinstance(phase, leases.Accepted) else None
    due = due or lease.assignment.message.accept_by
    return due < context.state.own.restarted_at + context.rules.limits.answer_within


def _add(context: StepContext, owner: Address, has_given_up: bool) -> None:
    answers = (*(context.state.answers.get(owner) or ()), has_given_up)[-ANSWERS_KEPT:]
    if len(answers) >= ANSWERS_LEAST and GIVEN_UP_SHARE * sum(answers) > len(answers):
        _take_off_offer(context, owner)
        answers = ()
    elif len(answers) == ANSWERS_KEPT and not any(answers):
        context.state.off_offer.pop(owner, None)
    context.state.answers[owner] = answers


def _take_off_offer(context: StepContext, owner: Address) -> None:
    limits, before = context.rules.limits, context.state.off_offer.get(owner)
    seconds = Seconds(min(2 * before, limits.off_offer_max) if before else limits.off_offer_first)
    context.state.off_offer[owner] = seconds
    context.state.providers[owner] = replace(
        context.state.providers[owner], off_offer_until=UnixSeconds(context.at + seconds)
    )


def _was_promised(provider: Provider, job: Job, lease: Lease) -> bool:
    """Whether the provider's offer covers such a job at such a price."""
    offer, assignment = provider.offer, lease.assignment.message
    slot = offers.slot_offer(offer, assignment.host_class) if offer is not None else None
    if offer is None or slot is None or assignment.price_per_hour < offers.price_of(slot):
        return False
    return offers.fits(offer, slot, job.submission.spec)
