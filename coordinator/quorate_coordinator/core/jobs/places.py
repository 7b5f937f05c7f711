"""Matches a job's primary, and refills places that lost their provider. A place is one execution
that a batch wants.
"""

from quorate_coordinator.core.audit import draw
from quorate_coordinator.core.audit.assignment import assign, end_unpaid
from quorate_coordinator.core.jobs.job_queue import JobQueue
from quorate_coordinator.core.matching import offers, work_windows
from quorate_coordinator.core.model.entities import BatchPlace, Job, Matching, Running, SkippedPlace
from quorate_coordinator.core.model.lease import Declined, Lapsed, Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import ASSIGNMENTS_MAX
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import Address, DeclineReason, Hash32, UnixSeconds
from quorate_protocol.values import replace

PLACED_PER_STEP_MAX = 512
REMATCH_SECONDS = 1
ASK_AGAIN_SECONDS = 10
DECLINES_MAX = 3  # so many owners who decline a job end it
ABOUT_THE_JOB = (DeclineReason.IMAGE, DeclineReason.INPUT_UNAVAILABLE, DeclineReason.GAVE_UP)
NOT_ABOUT_THE_JOB = (DeclineReason.UNSECURED, DeclineReason.PREEMPTED)


def match_waiting(context: StepContext, queue: JobQueue) -> None:
    """In turns: the client with the fewest running executions comes first, then the oldest job."""
    aside: list[Hash32] = []
    placed = 0
    while placed < PLACED_PER_STEP_MAX and (job := queue.next(context.at)) is not None:
        if not _may_be_placed(context, job):
            queue.set_aside(job)
            aside.append(job.id)
        elif place_primary(context, job):
            placed += 1
        elif not job.refused_by and not queue.park(job):
            aside += queue.set_lane_aside(job)
    queue.put_back(aside)


def _may_be_placed(context: StepContext, job: Job) -> bool:
    """The next tick ends jobs that may wait no more. The clock may have been set back."""
    assert isinstance(job.phase, Matching)
    return job.phase.not_before <= context.at < job.waits_until


def place_primary(context: StepContext, job: Job) -> bool:
    assert isinstance(job.phase, Matching)
    found = offers.choose(context, job)
    if not found:
        if job.refused_by:
            # Providers that were silent or declined are asked again after a while: in a small
            # market there may be no others.
            context.put(
                job, phase=Matching(UnixSeconds(context.at + ASK_AGAIN_SECONDS)), refused_by=()
            )
        return False
    provider = found[0].provider
    slot = StakeSlot(
        -1,
        provider.owner,
        provider.operator_key,
        provider.payout,
        provider.network,
        context.state.own.block,
    )
    job, lease = assign(context, job, slot, found[0].price, batch=0)
    context.put(
        job,
        phase=Running(
            0, 1, (BatchPlace(slot, -1, context.at, lease.assignment_hash),), 0, None, ()
        ),
    )
    return True


def reopen(context: StepContext, job: Job, lease: Lease, retry_at: UnixSeconds) -> Job:
    if not isinstance(job.phase, Running):
        return job
    place = next(
        (item for item in job.phase.places if item.assignment_hash == lease.assignment_hash), None
    )
    if place is None:
        return job
    others = tuple(item for item in job.phase.places if item is not place)
    if place.attempt < 0 and job.stop is not None:
        if others:  # the other execution of a fast job
            left = replace(job.phase, places=others, wanted=len(others))
            return context.put(job, phase=left)
        return end_unpaid(context, job, "stopped by its client before it gave a result")
    is_first = place.attempt < 0 or (job.is_drawing_first and not others)
    if is_first and (declined := _declined_by_all(context, job)):
        most = work_windows.halve_client(context, job.order.client)
        context.note(job.id, "window", f"of its client: {most} at once; each paid run widens it")
        return end_unpaid(context, job, f"lapsed: declined by {declined}")
    if place.attempt < 0 and len(job.leases) >= ASSIGNMENTS_MAX:
        return end_unpaid(context, job, f"lapsed: {ASSIGNMENTS_MAX} assignments gave no result")
    if place.attempt < 0:
        # This is so even if the provider is only busy, because it could say that for ever. Others
        # are asked, and this one again once all others were.
        later = Matching(UnixSeconds(context.at + REMATCH_SECONDS))
        return context.put(job, phase=later, refused_by=(*job.refused_by, lease.provider))
    if retry_at and not draw.is_out_of_patience(context, job, place):
        kept = replace(place, assignment_hash=None, retry_at=retry_at)
        return context.put(job, phase=replace(job.phase, places=(*others, kept)))
    if job.phase.is_repeat:  # another member of the group is asked
        return context.put(job, phase=replace(job.phase, places=others))
    pool = lease.assignment.message.pool
    if retry_at and offers.free_slots(context, context.state.providers[lease.provider], pool):
        # Its last heartbeat says that it is free: so it does not want this execution (4.2).
        declined_lease = replace(lease, phase=Declined(UnixSeconds(0)))
        context.state.leases[lease.assignment_hash] = declined_lease
    skip = SkippedPlace(place.attempt, place.slot, lease.assignment_hash)
    return context.put(
        job, phase=replace(job.phase, places=others, skipped=(*job.phase.skipped, skip))
    )


def _declined_by_all(context: StepContext, job: Job) -> str:
    """Who declined a job and why, once three owners have, or all of its class; else ""."""
    said = _declines(context, job)
    owners = len(offers.owners_of(context, job.pool.id()))
    return declined_by(context, job) if len(said) >= max(1, min(DECLINES_MAX, owners)) else ""


def declined_by(context: StepContext, job: Job) -> str:
    """Who declined a job and why; "" if nobody did."""
    said = _declines(context, job)
    if not said:
        return ""
    hint = ""
    if "input-unavailable" in said.values() and job.submission.spec.has_sources():
        hint = "; a source is gone, slow, private or has changed: order again, which pins it again"
    who = "1 provider" if len(said) == 1 else f"{len(said)} providers"
    return f"{who}: {', '.join(said.values())}{hint}"


def _declines(context: StepContext, job: Job) -> dict[Address, str]:
    """Reasons are the owners' word, so none weighs more than another. A Decline as unsecured is
    about this coordinator, and one as preempted about another job. A fast job's owners are drawn
    whatever they offer, so there only reasons count that are about the job.
    """
    said: dict[Address, str] = {}
    for digest in job.leases:
        match context.state.leases[digest]:
            case Lease(phase=Declined(start_by=0) | Lapsed(has_given_up=True), provider=owner):
                reason = context.state.declines[digest].decline.message.reason
                if reason in ABOUT_THE_JOB if job.is_fast else reason not in NOT_ABOUT_THE_JOB:
                    said[owner] = reason.name.lower().replace("_", "-")
            case _:
                pass
    return said


def retry_places(context: StepContext, job: Job, freed: Address | None = None) -> Job:
    assert isinstance(job.phase, Running)
    due = [
        place
        for place in job.phase.places
        if place.assignment_hash is None
        and (place.retry_at <= context.at or place.slot.owner == freed)
    ]
    for place in due:
        job = draw.assign_place(context, job, place)
    return job
