"""Ends rentals that run: stops, give-ups, and deadlines."""

from signal import Signals

from quorate_coordinator.core.audit.assignment import end_unpaid, lease_of, step_lease
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import Job, Rented
from quorate_coordinator.core.model.events import DeclineReceived, StopReceived
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.rentals import log_lines
from quorate_protocol.messages import frames
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_SIGNAL_BASE,
    DeclineReason,
    ExecutionEnd,
    ExitStatus,
    Milliseconds,
    UnixSeconds,
)
from quorate_protocol.values import replace

FAILED_WITHIN = 600  # seconds from its start in which a give-up counts in its provider's rank
STOP_SECONDS = 600


def end(context: StepContext, job: Job, why: str, fault: ExecutionEnd | None = None) -> None:
    """`fault`: what its provider did, if that ends it. Nothing is charged any more."""
    assert isinstance(job.phase, Rented)
    lease = context.state.leases[job.phase.assignment_hash]
    is_early = context.at < job.phase.started_at + FAILED_WITHIN
    how = fault if fault is not None and is_early else ExecutionEnd.RENTED
    job = log_lines.write(context, job, how)
    step_lease(context, lease, leases.RentalEnded())
    end_unpaid(context, job, why)


def said_of_exit(job: Job, status: ExitStatus, usage: Milliseconds) -> str:
    """Its provider ends an idle one by a signal (PROTOCOL 12.23), and says no more of it."""
    idle_stop, number = job.submission.spec.idle_stop, status - EXIT_SIGNAL_BASE
    if status == EXIT_MEMORY_KILL:
        return "it used more memory than it asked for"
    if number not in set(Signals):
        return f"exit {status}"
    if idle_stop and usage >= idle_stop * 1000 and number in (Signals.SIGTERM, Signals.SIGKILL):
        time = f"{idle_stop} s" if idle_stop % 60 else f"{idle_stop // 60}m"
        return f"stopped after {time} without use (idleStop)"
    return f"its program was ended by {Signals(number).name}"


def on_decline(context: StepContext, event: DeclineReceived) -> bool:
    """False for a lease that is no rental which runs, or ran."""
    lease = lease_of(context, event.decline.message.assignment_hash, event.key)
    if isinstance(lease.phase, leases.Returned):
        return True  # it comes again
    if not isinstance(lease.phase, leases.Live):
        return False
    job = context.state.jobs[lease.job_id]
    context.state.declines[lease.assignment_hash] = event
    reason = event.decline.message.reason
    name = reason.name.lower().replace("_", "-")
    is_excused = reason is DeclineReason.UNSECURED or _is_displaced(context, job, lease)
    fault = None if is_excused else ExecutionEnd.GAVE_UP
    end(context, job, f"its provider gave it up: {name}", fault)
    return True


def _is_displaced(context: StepContext, job: Job, lease: leases.Lease) -> bool:
    """Whether a rental on demand waits for its run slot: this coordinator assigned it there."""
    state, pool = context.state, lease.assignment.message.pool
    held = [state.leases[digest] for digest in state.leases_in_slots.get(lease.provider) or ()]
    return job.submission.spec.spot and any(
        isinstance(other.phase, leases.Accepted)
        and other.assignment.message.pool == pool
        and state.jobs[other.job_id].is_rental
        and not state.jobs[other.job_id].submission.spec.spot
        for other in held
    )


def on_stop(context: StepContext, job: Job, event: StopReceived) -> None:
    """The last meter may still come. A Stop that comes again changes nothing."""
    assert isinstance(job.phase, Rented)
    if job.phase.stop_by:
        return
    stop_by = UnixSeconds(context.at + context.rules.limits.commit_grace)
    context.put(job, stop=event.stop, phase=replace(job.phase, stop_by=stop_by))
    context.note(job.id, "stopped", "by its client")
    digest = job.phase.assignment_hash
    owner = context.state.leases[digest].provider
    frame, until = frames.StopSent(digest, event.stop), UnixSeconds(context.at + STOP_SECONDS)
    context.emit(Send(f"stop-{digest.hex()}", owner, frame, until))


def on_deadline(context: StepContext, job: Job) -> None:
    assert isinstance(job.phase, Rented)
    seconds = context.rules.limits.rental_ahead
    if 0 < job.phase.stop_by <= context.at:
        end(context, job, "stopped by its client, and its last meter did not come")
    elif not job.phase.stop_by and context.at > job.phase.heard_at + seconds:
        why = f"its provider sent no meter for {seconds} s"
        end(context, job, why, ExecutionEnd.LAPSED)


def hear_again(context: StepContext, job: Job) -> None:
    """Silence counts from now on, because this coordinator was away."""
    assert isinstance(job.phase, Rented)
    context.put(job, phase=replace(job.phase, heard_at=context.at))
