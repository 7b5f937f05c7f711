"""Chooses the next phase of a job. No other module does: handlers of events change a lease, a place
or the stop, and then call `advance`.
"""

from typing import assert_never

from quorate_coordinator.core.audit import batches, comparisons, draw, repeats, verdicts
from quorate_coordinator.core.audit.assignment import end_unpaid
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    Decided,
    EmptyDraw,
    Ended,
    Job,
    Matching,
    Rented,
    Revealing,
    Running,
)
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.units import Label, Round

ROUNDS_UNTIL_AGAIN = 5


def advance(context: StepContext, job: Job) -> Job:
    """Takes a job as far as it can go now. Returns the same job when nothing is due.

    The matcher takes a job out of `Matching`, a beacon round out of `AwaitingRound`, and the end of
    the hold out of `Decided`.
    """
    match job.phase:
        case Running(is_repeat=True):
            return _advance_repeats(context, repeats.fill(context, job))
        case Running(beacon=None):
            return _advance_primary(context, job, job.phase)
        case Running():
            return _advance_drawn(context, draw.fill_places(context, job))
        case Revealing():
            return _advance_revealing(context, job, job.phase)
        case Matching() | AwaitingRound() | Rented() | Decided() | Ended():
            return job
        case _:
            assert_never(job.phase)


def _advance_primary(context: StepContext, job: Job, phase: Running) -> Job:
    members = batches.committed_members(context, phase)
    if members is None:
        return job
    if job.stop is not None or job.ack.message.rule is Label.UNVERIFIED:
        # Nobody can repeat an execution that was cut short, so there is no draw. The result is
        # opened alone, and the elapsed time is paid. Nor is one drawn where nobody verifies.
        return batches.close(context, job, phase, members)
    commit = batches.commit_of(members[0]).message
    commit_hash = context.digest(commit)
    context.state.commits[commit_hash] = job.id
    stored_at = batches.stored_at_of(members[0])
    first = beacon_time.first_usable_round(context, commit.beacon_round, stored_at)
    return context.put(
        job, phase=AwaitingRound(0, 0, first, phase.places), commits=(*job.commits, commit_hash)
    )


def _advance_drawn(context: StepContext, job: Job) -> Job:
    phase = job.phase
    assert isinstance(phase, Running) and phase.beacon is not None
    members = batches.committed_members(context, phase)
    if members is None:
        return job
    if members:
        return batches.close(context, job, phase, members)
    if not phase.batch:
        return end_unpaid(context, job, "lapsed: none of the owners that were drawn ran it")
    if phase.is_again:
        job = context.put(
            job,
            empty_draw=EmptyDraw(phase.batch, phase.beacon.round, batches.in_order(phase.skipped)),
        )
        return verdicts.decide(context, job, is_exhausted=True)
    # An escalation found nobody. The same draw is tried once more a little later, because
    # providers may be back by then.
    later = Round(beacon_time.newest_round(context) + ROUNDS_UNTIL_AGAIN)
    return context.put(job, phase=AwaitingRound(phase.batch, 1, later, (), True, phase.skipped))


def _advance_repeats(context: StepContext, job: Job) -> Job:
    assert isinstance(job.phase, Running)
    members = batches.committed_members(context, job.phase)
    if members is None:
        return job
    if members:
        return batches.close(context, job, job.phase, members)
    return verdicts.decide(context, job, is_exhausted=False)


def _advance_revealing(context: StepContext, job: Job, phase: Revealing) -> Job:
    members = batches.members_of(context, phase.batch)
    if not all(isinstance(lease.phase, leases.Revealed | leases.Silent) for lease in members):
        return job
    are_silent = all(isinstance(lease.phase, leases.Silent) for lease in members)
    is_alone = len(job.batches) == 1 and len(members) == 1
    if job.stop is not None and are_silent and (is_alone or batches.was_cut_short(job)):
        return end_unpaid(context, job, "stopped by its client, and what it gave was not revealed")
    if is_alone and are_silent and not job.is_fast:
        # A batch of one that is not revealed lapses unpaid, and another provider runs the job.
        context.note(job.id, "lapsed", f"execution {members[0].index} was not revealed")
        return context.put(
            job,
            phase=Matching(context.at),
            batches=(),
            beacons=(),
            empty_draw=None,
            witness=None,
            refused_by=(*job.refused_by, members[0].provider),
        )
    if batches.was_cut_short(job):
        return verdicts.pay_elapsed(context, job, members)
    job = comparisons.ask(context, job)
    if comparisons.is_waiting(job):
        return job
    return verdicts.decide(context, job, is_exhausted=False)
