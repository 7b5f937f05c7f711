"""The machine of one rental at its provider, from the moment at which its container may run.

Until then it is an execution. Its container then runs until something ends it, and a meter is sent
in each interval. Usage is the container's run time, so nothing is counted twice after a restart.
"""

from quorate_node.core import capacity, effects, events, execution
from quorate_node.core.execution import Stepped
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import Execution, Live, Over, Starting
from quorate_node.core.terms import Terms
from quorate_protocol.messages.signed import Decline
from quorate_protocol.units import DeclineReason, Milliseconds, UnixSeconds
from quorate_protocol.values import replace

NOTICE_SECONDS = 15
"""From the notice that the owner needs the machine to the container's stop. It then has 5 s, and a
game is seen within 10 s.
"""
EVICT_SECONDS = 10  # of notice: open terminals show the reason within 5 s
WAIT_SECONDS = 60  # for the run slot of a spot rental that ends within 30 s
ON_DEMAND = "an on-demand rental takes its place"


def duties(rental: Execution) -> tuple[effects.LeaseEffect, ...]:
    """As `execution.duties`."""
    lease, coordinator, phase = rental.assignment_hash, rental.coordinator, rental.phase
    match phase:
        case Live():
            watch = effects.WatchTask(lease, coordinator)
            meter = effects.SendMeter(lease, coordinator, phase.metered_ms)
            stop = (effects.StopTask(lease),) if phase.is_stopping else ()
            return (watch, meter, *stop)
        case Over():
            remove = effects.StopTask(lease), effects.RemoveTask(lease)
            if phase.decline is not None:
                give_up_at = phase.forget_at
                return (*remove, effects.SendDecline(lease, coordinator, phase.decline, give_up_at))
            if phase.exit_status is None:
                return remove
            last = effects.SendMeter(lease, coordinator, phase.usage_ms, phase.exit_status)
            return (last, effects.RemoveTask(lease))
        case _:
            return execution.duties(rental)


def next_due(rental: Execution, terms: Terms) -> UnixSeconds:
    match rental.phase:
        case Starting() if not rental.has_slot:
            return UnixSeconds(rental.fetched_at + WAIT_SECONDS + 1)
        case Live() as phase:
            due = min(_meter_at(phase, terms), _covered_until(phase, terms))
            return min(due, phase.gives_way_at) if phase.gives_way_at else due
        case Over(forget_at=forget_at):
            kept = execution.KEEP_SECONDS - execution.DONE_KEEP_SECONDS
            return UnixSeconds(forget_at - kept)
        case _:
            return execution.next_due(rental)


def _meter_at(phase: Live, terms: Terms) -> UnixSeconds:
    every = terms.limits.meter_every
    return UnixSeconds(phase.started_at + phase.metered_ms // 1000 + every)


def _covered_until(phase: Live, terms: Terms) -> UnixSeconds:
    ahead = terms.limits.rental_ahead
    return UnixSeconds(phase.started_at + phase.covered_ms // 1000 + ahead + 1)


def step(
    rental: Execution, event: events.ExecutionEvent, at: UnixSeconds, random: bytes, terms: Terms
) -> Stepped:
    """As `execution.step`."""
    match rental.phase, event:
        case Starting(is_stopping), events.TaskStarted():
            return _enter(rental, Live(at, is_stopping=is_stopping))
        case ((Starting() | Live()), events.TaskExited() as exited):
            return _exited(rental, exited, at)
        case Live(), events.TaskFailed(why=why):
            return _give_up(rental, why, DeclineReason.GAVE_UP, at)
        case Live(is_stopping=False) as phase, events.StopReceived():
            stopping = rental.to(replace(phase, is_stopping=True))
            return stopping, (effects.StopTask(rental.assignment_hash),)
        case Live() as phase, events.MeterAnswered() as answer:
            return _answered(rental, phase, answer, at)
        case Live() as phase, events.Tick():
            return _tick(rental, phase, at, terms)
        case ((Live() | Over()), _):
            return rental, ()
        case _, events.MeterAnswered():
            return rental, ()
        case _:
            return execution.step(rental, event, at, random, terms)


def change_places(
    terms: Terms,
    executions: tuple[Execution, ...],
    jury: tuple[JuryDuty, ...],
    unusable: frozenset[str],
    at: UnixSeconds,
) -> Stepped | None:
    """Gives a free run slot to a rental that waits for one. Else, for each that is ready to start,
    the newest spot rental of its pool gives way (PROTOCOL 12.42). Until then it has no GPU.
    """
    for found in executions:
        if not found.is_under_way or found.has_slot:
            continue
        pool = found.pool
        if capacity.free(terms, pool, executions, jury, unusable) > 0:
            groups = capacity.free_groups(terms, pool, executions, jury, unusable)
            moved = replace(found, has_slot=True, gpus=groups[0] if groups else ())
            return moved, duties(moved) if isinstance(moved.phase, Starting) else ()
        if not isinstance(found.phase, Starting):
            continue
        if at >= next_due(found, terms):
            why = f"no spot rental left its run slot within {WAIT_SECONDS} s"
            return execution.give_up(found, why, DeclineReason.BUSY, at)
        spot = capacity.yielding(terms, pool, executions, unusable)
        leaving = [it for it in spot if isinstance(it.phase, Live) and it.phase.gives_way_at]
        staying = [item for item in spot if item not in leaving]
        ready = sum(isinstance(it.phase, Starting) for it in capacity.waiting(executions, pool))
        if staying and len(leaving) < ready:
            return give_way(staying[-1], ON_DEMAND, at, NOTICE_SECONDS)
    return None


def cover(rental: Execution) -> Execution:
    """Vouchers now pay all meters that the coordinator took."""
    phase = rental.phase
    if not isinstance(phase, Live) or phase.covered_ms == phase.answered_ms:
        return rental
    return rental.to(replace(phase, covered_ms=phase.answered_ms))


def lose_gpus(rental: Execution, gone: tuple[str, ...], at: UnixSeconds) -> Stepped:
    if not isinstance(rental.phase, Live):
        return execution.lose_gpus(rental, gone, at)
    why = f"GPU {', '.join(gone)} is gone: the driver does not list it any more"
    return _give_up(rental, why, DeclineReason.GAVE_UP, at)


def give_way(rental: Execution, why: str, at: UnixSeconds, notice: int) -> Stepped:
    """Its owner needs the machine in `notice` seconds."""
    match rental.phase:
        case Live() as phase:
            ends_at = UnixSeconds(at + notice)
            if 0 < phase.gives_way_at <= ends_at:
                return rental, ()
            return rental.to(replace(phase, gives_way_at=ends_at, gives_way_to=why[:200])), ()
        case _:
            return execution.give_up(rental, why, DeclineReason.PREEMPTED, at)


def _enter(rental: Execution, phase: Live | Over) -> Stepped:
    moved = rental.to(phase)
    return moved, duties(moved)


def _exited(rental: Execution, event: events.TaskExited, at: UnixSeconds) -> Stepped:
    metered = rental.phase.metered_ms if isinstance(rental.phase, Live) else 0
    usage, forget_at = Milliseconds(max(metered, event.usage_ms)), _forget_at(at)
    return _enter(rental, Over(f"exit {event.status}", usage, forget_at, event.status))


def _answered(
    rental: Execution, phase: Live, event: events.MeterAnswered, at: UnixSeconds
) -> Stepped:
    if event.refusal:
        return _enter(rental, Over(event.refusal[:200], phase.metered_ms, _forget_at(at)))
    answered = Milliseconds(max(phase.answered_ms, event.usage_ms))
    return rental.to(replace(phase, answered_ms=answered)), ()


def _tick(rental: Execution, phase: Live, at: UnixSeconds, terms: Terms) -> Stepped:
    if at >= _covered_until(phase, terms):
        why = f"no voucher covers more than {phase.covered_ms // 1000} s of it"
        return _give_up(rental, why, DeclineReason.UNSECURED, at)
    if 0 < phase.gives_way_at <= at:
        return _give_up(rental, phase.gives_way_to, DeclineReason.PREEMPTED, at)
    if at < _meter_at(phase, terms):
        return rental, ()
    return _enter(rental, replace(phase, metered_ms=Milliseconds((at - phase.started_at) * 1000)))


def _give_up(rental: Execution, why: str, reason: DeclineReason, at: UnixSeconds) -> Stepped:
    assert isinstance(rental.phase, Live)
    decline = Decline(rental.assignment_hash, reason, UnixSeconds(0), at)
    usage = rental.phase.metered_ms
    return _enter(rental, Over(why[:200], usage, _forget_at(at), decline=decline))


def _forget_at(at: UnixSeconds) -> UnixSeconds:
    return UnixSeconds(at + execution.KEEP_SECONDS)
