"""Applies beacon rounds and deadlines to jobs."""

from quorate_coordinator.core.audit import batches, draw, verdicts
from quorate_coordinator.core.audit.assignment import end_unpaid, step_lease
from quorate_coordinator.core.jobs import places
from quorate_coordinator.core.jobs.advance import advance
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    BeaconUsed,
    EmptyDraw,
    Job,
    Matching,
    Revealing,
    Running,
    open_leases,
)
from quorate_coordinator.core.model.events import RoundAppeared, Tick
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.model.tables import NEWEST_ROUND
from quorate_protocol.units import Hash32, UnixSeconds


def on_round(context: StepContext, event: RoundAppeared, waiting: list[Job]) -> None:
    """Computes all audit rates first, so that one draw cannot change the rate of the next."""
    if waiting:  # a round that no job waits for is not used as a clock
        context.state.counters[NEWEST_ROUND] = max(
            event.round, context.state.counters.get(NEWEST_ROUND) or 0
        )
    beacon = BeaconUsed(event.round, event.signature, event.randomness)
    rates = [draw.audit_ppm(context, job) for job in waiting]
    for job, rate in zip(waiting, rates, strict=True):
        assert isinstance(job.phase, AwaitingRound) and job.phase.round == event.round
        if job.is_drawing_first and (why := _why_nobody_is_drawn(context, job)):
            end_unpaid(context, job, why)
            continue
        advance(context, draw.draw(context, job, job.phase, beacon, rate))


def _why_nobody_is_drawn(context: StepContext, job: Job) -> str:
    """Why a fast job ends at its round; "" if it does not. Without the Witness nobody could tell
    that its Ack is older than the round.
    """
    if job.witness is None:
        return (
            "lapsed: its client did not countersign the Ack before the round that draws its "
            "providers; order again"
        )
    if context.at >= job.order.expiry:
        return "the order expired before its providers were drawn"
    return ""


def on_missing_round(context: StepContext, job: Job) -> None:
    """Ends the wait of a job for a round that is missing (PROTOCOL 5.21).

    If only its primary has committed, nobody has opened a result. Then a Stop of its client opens
    the primary's alone. Once its order has expired and the round is late by the longest hold, the
    job ends unpaid. A job that waits for a later draw then ends as if the draw had found nobody.
    """
    phase, limits = job.phase, context.rules.limits
    assert isinstance(phase, AwaitingRound)
    late = context.at - context.rules.timing.appears_at(phase.round)
    if late < limits.beacon_missing_after:
        return
    if phase.is_again:  # the round is only a clock here: an earlier one draws
        advance(
            context, draw.draw(context, job, phase, job.beacons[-1], draw.audit_ppm(context, job))
        )
    elif job.is_drawing_first:
        end_unpaid(context, job, "the beacon round that draws its providers did not appear")
    elif phase.batch:
        if late >= limits.max_hold:
            job = context.put(job, empty_draw=EmptyDraw(phase.batch, phase.round, ()))
            verdicts.decide(context, job, is_exhausted=True)
    elif job.stop is not None and phase.committed:
        count = len(phase.committed)
        running = Running(0, count, phase.committed, 0, None, phase.skipped)
        advance(context, context.put(job, phase=running))
    elif late >= limits.max_hold and context.at >= job.order.expiry:
        end_unpaid(context, job, "the beacon round that draws its auditors did not appear")


def on_deadline(context: StepContext, job: Job) -> None:
    if isinstance(job.phase, Matching):
        if context.at >= job.waits_until:
            end_unpaid(context, job, _why_it_waits_no_more(context, job))
        return
    for digest in _due_leases(context, job):
        lease = context.state.leases[digest]
        moved, effects = step_lease(context, lease, Tick())
        if leases.Effect.PLACE_OPEN in effects:
            context.note(job.id, "lapsed", f"execution {lease.index}: {_why(context, lease)}")
            job = advance(context, places.reopen(context, job, moved, UnixSeconds(0)))
    if isinstance(job.phase, Running):
        job = places.retry_places(context, job)
    job = advance(context, job)
    if isinstance(job.phase, Revealing):
        batches.reclose_if_slow(context, job)


def _why_it_waits_no_more(context: StepContext, job: Job) -> str:
    if job.lacks_content:
        return "lapsed: the coordinator could not take its image and inputs in time; upload them"
    if declined := places.declined_by(context, job):
        return f"lapsed: declined by {declined}"
    if job.waits_until == job.order.expiry:
        return "no provider could be matched before the order expired"
    seconds = job.submission.spec.start_within
    return f"lapsed: no provider started it within {seconds} s; ask for more with start_within"


def _why(context: StepContext, lease: Lease) -> str:
    phase = lease.phase
    if not isinstance(phase, leases.Accepted):
        return "its provider did not answer"
    return leases.why_lapsed(phase, context.at, context.rules.limits)


def _due_leases(context: StepContext, job: Job) -> list[Hash32]:
    open_phases = (leases.Assigned, leases.Accepted, leases.Closed)
    return [
        digest
        for digest in open_leases(job)
        if isinstance(context.state.leases[digest].phase, open_phases)
    ]
