"""The coordinator as one pure machine: `step` decides everything; the actor journals its inputs
and performs its effects.
"""

from collections.abc import Callable
from typing import assert_never

from quorate_coordinator.core import assignment, chain_events, orders
from quorate_coordinator.core import events as ev
from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import draw, verdicts
from quorate_coordinator.core.effects import Effect
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.holds.windows import Passing
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.matching.job_queue import JobQueue
from quorate_coordinator.core.money import epochs, ledger
from quorate_coordinator.core.records import retirement
from quorate_coordinator.core.state import (
    AwaitingRound,
    Decided,
    Ended,
    Job,
    Matching,
    Revealing,
    Running,
    State,
)
from quorate_coordinator.core.step_context import Rules, StepContext
from quorate_protocol.step import Input, Outcome
from quorate_protocol.units import Hash32, Round, UnixSeconds

PLACED_PER_STEP_MAX = 512
RELEASED_PER_TICK_MAX = 2048


class Coordinator:
    """Holds the state; every change goes through `step`, all of it or nothing."""

    def __init__(self, rules: Rules, check: Callable[[StepContext], None] | None = None) -> None:
        """`check` asserts invariants after every step (simulator and tests; the linear ones are
        too dear for every step live).
        """
        self.rules = rules
        self.state = State()
        self.queue = JobQueue(self.state, rules.limits)
        self.passing = Passing(self.state)
        self.leaving = retirement.Leaving(self.state)
        self._check = check

    def step(self, item: Input[ev.Event]) -> Outcome[Effect]:
        """Decides one event. Raises Refused and has then changed nothing."""
        context = StepContext(self.state, self.rules, item.at, item.random)
        self.state.begin()
        try:
            reply = self._handle(context, item.event)
            if self._check is not None:
                self._check(context)
        except BaseException:
            self.state.rollback()
            raise
        self.state.commit()
        return Outcome(tuple(context.effects), reply)

    def snapshot(self) -> bytes:
        """Canonical bytes of all tables."""
        return self.state.snapshot()

    def restore(self, data: bytes) -> None:
        """Replaces all tables by a snapshot."""
        self.state.restore(data)

    def rounds_wanted(self) -> list[Round]:
        """Beacon rounds that jobs wait for."""
        return self.queue.rounds()

    def needs_tick(self, at: int | None = None) -> bool:
        """Whether time alone can change anything by `at` (None: ever): an idle coordinator
        journals nothing.
        """
        state = self.state
        return bool(
            state.live or state.held or state.unstated or state.own.is_dirty
        ) or self.leaving.is_due(at)

    def _handle(self, context: StepContext, event: ev.Event) -> object:
        match event:
            case ev.OrderReceived(submission):
                job = orders.on_order(context, submission)
                match_waiting(context, self.queue)
                return job.ack
            case ev.OfferReceived():
                offers.on_offer(context, event)
                match_waiting(context, self.queue)
            case ev.HeartbeatReceived():
                offers.on_heartbeat(context, event)
            case ev.AcceptReceived():
                assignment.on_accept(context, event)
            case ev.DeclineReceived():
                assignment.on_decline(context, event)
                match_waiting(context, self.queue)
            case ev.CommitReceived():
                assignment.on_commit(context, event)
                hand_over(context, self.queue, event.commit.message.assignment_hash)
                match_waiting(context, self.queue)
            case ev.RevealReceived():
                verdicts.on_reveal(context, event)
                match_waiting(context, self.queue)
            case ev.WitnessReceived():
                assignment.on_witness(context, event)
            case ev.VoucherReceived():
                ledger.on_voucher(context, event)
            case ev.StopReceived():
                assignment.on_stop(context, event)
            case ev.RoundAppeared(number):
                draw.on_round(context, event, self.queue.awaiting(number))
                match_waiting(context, self.queue)
            case ev.ChainAdvanced():
                chain_events.on_block(context, event)
            case ev.ChainReorganised():
                chain_events.on_reorganised(context, event)
            case ev.ChainAsked():
                chain_events.on_asked(context, event)
            case ev.SessionReceived(session):
                orders.on_session(context, session)
            case ev.TransactionRefused():
                chain_events.on_refused(context, event)
            case ev.RunsArchived():
                retirement.on_archived(context, event)
            case ev.Restarted():
                if (
                    self.state.own.is_compared
                ):  # else the start before ended too early, and what it began with counts
                    context.books(is_compared=False, epoch_at_start=self.state.own.epoch)
                _for_live(
                    context,
                    lambda job: (
                        verdicts.reclose(context, job) if isinstance(job.phase, Revealing) else None
                    ),
                )
            case ev.Compared():
                context.books(is_compared=True, epoch_at_start=None)
            case ev.Tick():
                on_tick(context, self.queue, self.passing)
                retirement.archive_due(context, self.leaving)
            case _:
                assert_never(event)
        return None


def on_tick(context: StepContext, queue: JobQueue, passing: Passing) -> None:
    """Every deadline there is (I7)."""
    for job in queue.due(context.at):
        _tick_job(context, job)
    match_waiting(context, queue)
    for job in passing.over(RELEASED_PER_TICK_MAX):
        held_pay.window_passed(context, job)
    for job in queue.releasable(context.at):
        held_pay.at_limit(context, job)
    ledger.state_credits(context)
    epochs.build_if_due(context)


def _for_live(context: StepContext, act: Callable[[Job], None]) -> None:
    for job_id in list(context.state.live.keys()):
        act(context.state.jobs[job_id])


def _tick_job(context: StepContext, job: Job) -> None:
    if isinstance(job.phase, Matching):
        if context.at >= job.submission.order.message.expiry:
            assignment.end(context, job, "nobody could be matched before the order expired")
        return
    for digest in _due_leases(context, job):
        lease = context.state.leases[digest]
        moved, effects = assignment.move(context, lease, leases.Tick())
        if leases.Effect.PLACE_OPEN in effects:
            context.note(context.state.jobs[job.id], "lapsed", f"execution {lease.index}")
            assignment.reopen(context, context.state.jobs[job.id], moved, UnixSeconds(0))
    job = context.state.jobs[job.id]
    match job.phase:
        case Running():
            assignment.retry_places(context, job)
        case Revealing():
            verdicts.decide_if_open(context, job)
            job = context.state.jobs[job.id]
            if isinstance(job.phase, Revealing):
                verdicts.reclose_if_slow(context, job)
        case Matching() | AwaitingRound() | Decided() | Ended():
            pass
        case _:
            assert_never(job.phase)


def _due_leases(context: StepContext, job: Job) -> list[Hash32]:
    open_phases = (leases.Assigned, leases.Accepted, leases.Closed)
    return [
        digest
        for digest in job.leases[-16:]
        if isinstance(context.state.leases[digest].phase, open_phases)
    ]


def hand_over(context: StepContext, queue: JobQueue, committed: Hash32) -> None:
    """The slot that a commit freed goes to a drawn execution that waits for just this provider,
    before any primary, which may run anywhere. Else, as long as primaries wait, no drawn
    execution would ever find its provider free, and no job would end.
    """
    owner = context.state.leases[committed].provider
    job = queue.kept_for(owner)
    if job is not None:
        assignment.retry_places(context, job, owner)


def match_waiting(context: StepContext, queue: JobQueue) -> None:
    """Places waiting primaries, clients in turn: whoever has the fewest executions running goes
    first, then the oldest.
    """
    aside: list[Hash32] = []
    placed = 0
    while placed < PLACED_PER_STEP_MAX and (job := queue.next(context.at)) is not None:
        if not _may_be_placed(context, job):
            queue.set_aside(job)
            aside.append(job.id)
        elif assignment.place_primary(context, job):
            placed += 1
        elif not job.refused_by and not queue.park(job):
            aside += queue.set_lane_aside(job)
    queue.put_back(aside)


def _may_be_placed(context: StepContext, job: Job) -> bool:
    """Not after its expiry, which the next tick declares; not before its time, should the clock
    have been set back.
    """
    assert isinstance(job.phase, Matching)
    return job.phase.not_before <= context.at < job.submission.order.message.expiry
