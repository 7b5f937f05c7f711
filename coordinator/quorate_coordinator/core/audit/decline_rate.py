"""Counts how often a provider declines audits that it was drawn for (PROTOCOL §4).

A provider that declines more than 20 % of its recent draws is not drawn again until it publishes a
new offer. Otherwise it could choose what it audits (I9). A postponed execution does not count. Nor
does one that the offer did not promise, because the draw looks only at the host class.
"""

from quorate_coordinator.core.entities import Job, Provider, Running
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.units import DeclineReason
from quorate_protocol.values import replace

DRAWS_KEPT = 20
DRAWS_LEAST = 5  # with fewer answers, no provider is judged
DECLINED_SHARE = 5  # more than one in five is too much
_NOT_ITS_DOING = (DeclineReason.INPUT_UNAVAILABLE, DeclineReason.BAD_KEY)


def accepted(context: StepContext, lease: Lease) -> None:
    """Counts a drawn execution that its provider accepted."""
    if _is_drawn(context.state.jobs[lease.job_id], lease):
        _count(context, lease, has_declined=False)


def declined(context: StepContext, lease: Lease, reason: DeclineReason) -> None:
    """Counts a drawn execution that its provider declined. Above the limit, its offer is removed
    until it publishes a new one.
    """
    job, provider = context.state.jobs[lease.job_id], context.state.providers[lease.provider]
    if (
        _is_drawn(job, lease)
        and reason not in _NOT_ITS_DOING
        and _was_promised(provider, job, lease)
    ):
        _count(context, lease, has_declined=True)


def _count(context: StepContext, lease: Lease, has_declined: bool) -> None:
    owner = lease.provider
    answers = (*(context.state.answers.get(owner) or ()), has_declined)[-DRAWS_KEPT:]
    if len(answers) >= DRAWS_LEAST and DECLINED_SHARE * sum(answers) > len(answers):
        context.state.providers[owner] = replace(context.state.providers[owner], offer=None)
        answers = ()
    context.state.answers[owner] = answers


def _is_drawn(job: Job, lease: Lease) -> bool:
    phase = job.phase
    return isinstance(phase, Running) and any(
        place.assignment_hash == lease.assignment_hash and place.attempt >= 0
        for place in phase.places
    )


def _was_promised(provider: Provider, job: Job, lease: Lease) -> bool:
    """Whether the provider's offer covers such a job at such a price."""
    offer, assignment = provider.offer, lease.assignment.message
    slot = offers.slot_offer(offer, assignment.host_class) if offer is not None else None
    if offer is None or slot is None or assignment.price_per_hour < offers.price_of(slot):
        return False
    return offers.fits(offer, slot, job.submission.spec)
