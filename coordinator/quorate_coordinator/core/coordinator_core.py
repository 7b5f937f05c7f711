"""The coordinator as one pure machine: `step` makes every decision.

The actor journals the inputs of `step` and has its effects performed.
"""

from collections.abc import Callable
from typing import assert_never

from quorate_coordinator.core import chain_events
from quorate_coordinator.core.audit import batches
from quorate_coordinator.core.audit.assignment import step_lease
from quorate_coordinator.core.audit.windows import HoldQueue
from quorate_coordinator.core.jobs import (
    client_signatures,
    deadlines,
    log_reads,
    orders,
    places,
    provider_answers,
    retirement,
)
from quorate_coordinator.core.jobs.job_queue import JobQueue
from quorate_coordinator.core.matching import attestations, heartbeats, offers
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.entities import Job, Rented, Revealing, open_leases
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_coordinator.core.money import held_pay, ledger, payees, transactions
from quorate_coordinator.core.rentals import allowances, ends, log_lines, meters
from quorate_protocol.limits import HEARTBEAT_LEASES_MAX
from quorate_protocol.messages.signed import Heartbeat
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.step import Input, StepOutcome
from quorate_protocol.units import Round, WorkStage

_PREPARING = (WorkStage.FETCHING, WorkStage.STARTING)


def check_count(beat: Heartbeat) -> None:
    """Raises Refused if a heartbeat names too many leases."""
    if len(beat.leases) > HEARTBEAT_LEASES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"heartbeat.leases: {len(beat.leases)} are named, at most {HEARTBEAT_LEASES_MAX} are "
            "taken",
        )


def on_heartbeat(context: StepContext, beat: Heartbeat) -> None:
    """Leases that are not the provider's, or that have committed or ended, change nothing."""
    for item in beat.leases:
        lease = context.state.leases.get(item.assignment_hash)
        if lease is None or lease.provider != beat.provider:
            continue
        if not isinstance(lease.phase, leases.Accepted):
            continue
        step_lease(context, lease, leases.ProgressReported(item.stage is WorkStage.FETCHING))
        job = context.state.jobs[lease.job_id]
        if not job.is_started and item.stage not in _PREPARING:
            context.put(job, is_started=True)


def hear_again(context: StepContext, job: Job) -> None:
    """Silence counts from now on, because this coordinator was away."""
    for digest in open_leases(job):
        lease = context.state.leases[digest]
        if isinstance(lease.phase, leases.Accepted):
            step_lease(context, lease, leases.ProgressReported(is_fetching=False))


RELEASED_PER_TICK_MAX = 2048


class CoordinatorCore:
    """Holds the state. `step` applies the whole event or nothing."""

    def __init__(self, rules: Rules, check: Callable[[StepContext], None] | None = None) -> None:
        """`check` asserts invariants after every step, for tests: its cost is linear."""
        self.rules = rules
        self.state = State()
        self.queue = JobQueue(self.state, rules.limits)
        self.hold_queue = HoldQueue(self.state)
        self.retirement_queue = retirement.RetirementQueue(self.state)
        self._check = check

    def step(self, item: Input[ev.Event]) -> StepOutcome[Effect]:
        """Returns the effects. When it raises Refused, it has changed nothing."""
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
        return StepOutcome(tuple(context.effects), reply)

    def snapshot(self) -> bytes:
        return self.state.snapshot()

    def restore(self, data: bytes) -> None:
        self.state.restore(data)

    def rounds_wanted(self) -> list[Round]:
        return self.queue.rounds()

    def needs_tick(self, at: int | None = None) -> bool:
        """By `at` (None: ever). An idle coordinator journals no ticks."""
        state, money_at = self.state, self.state.own.money_at
        is_money_due = bool(money_at) and (at is None or money_at <= at)
        return (
            bool(state.live or state.held or state.vouchers_due)
            or is_money_due
            or self.retirement_queue.is_due(at)
        )

    def _handle(self, context: StepContext, event: ev.Event) -> object:
        match event:
            case ev.OrderReceived(submission, is_escrowed, lacks_content):
                answer = orders.answer(context, submission, is_escrowed, lacks_content)
                places.match_waiting(context, self.queue)
                return answer
            case ev.ContentTaken():
                orders.on_content_taken(context, event)
                places.match_waiting(context, self.queue)
            case ev.OfferReceived():
                offers.on_offer(context, event)
                places.match_waiting(context, self.queue)
            case ev.HeartbeatReceived():
                check_count(event.heartbeat.message)
                has_more = heartbeats.on_heartbeat(context, event)
                on_heartbeat(context, event.heartbeat.message)
                if has_more:
                    places.match_waiting(context, self.queue)
            case ev.AcceptReceived():
                provider_answers.on_accept(context, event)
            case ev.DeclineReceived():
                if not ends.on_decline(context, event):
                    provider_answers.on_decline(context, event)
                places.match_waiting(context, self.queue)
            case ev.MeterReceived():
                return self._on_meter(context, event)
            case ev.CommitReceived():
                provider_answers.on_commit(context, event)
                provider_answers.hand_over(context, self.queue, event)
                places.match_waiting(context, self.queue)
            case ev.EquivocationSeen():
                provider_answers.on_equivocation(context, event)
            case ev.RevealReceived():
                provider_answers.on_reveal(context, event)
                places.match_waiting(context, self.queue)
            case ev.OutputsCompared():
                provider_answers.on_compared(context, event)
                places.match_waiting(context, self.queue)
            case ev.AttestationReceived():
                attestations.on_attestation(context, event)
                places.match_waiting(context, self.queue)
            case ev.WitnessReceived():
                client_signatures.on_witness(context, event)
            case ev.VoucherReceived():
                ledger.on_voucher(context, event)
            case ev.GiveBackAsked():
                return transactions.on_give_back(context, event)
            case ev.AllowanceNamed():
                allowances.on_allowance(context, event)
            case ev.StopReceived():
                _on_stop(context, event)
            case ev.LogRead():
                log_reads.on_log_read(context, event)
            case ev.RoundAppeared(number):
                deadlines.on_round(context, event, self.queue.awaiting(number))
                places.match_waiting(context, self.queue)
            case ev.ChainAdvanced():
                chain_events.on_block(context, event)
            case ev.ChainReorganised():
                chain_events.on_reorganised(context, event)
            case ev.ChainStateQueried():
                chain_events.on_state_queried(context, event)
            case ev.SessionReceived(session):
                orders.on_session(context, session)
            case ev.TransactionConfirmed():
                chain_events.on_confirmed(context, event)
            case ev.TransactionRefused():
                chain_events.on_refused(context, event)
            case ev.RunsArchived():
                retirement.on_archived(context, event)
            case ev.Restarted():
                _on_restart(context)
            case ev.Compared():
                context.change_own(is_compared=True)
            case ev.Tick():
                on_tick(context, self.queue, self.hold_queue)
                retirement.archive_due(context, self.retirement_queue)
            case _:
                assert_never(event)
        return None

    def _on_meter(self, context: StepContext, event: ev.MeterReceived) -> Refused | None:
        refusal = meters.on_meter(context, event)
        places.match_waiting(context, self.queue)
        return refusal


def _on_stop(context: StepContext, event: ev.StopReceived) -> None:
    job = client_signatures.stopped_job(context, event)
    stop = ends.on_stop if isinstance(job.phase, Rented) else client_signatures.on_stop
    stop(context, job, event)


def on_tick(context: StepContext, queue: JobQueue, hold_queue: HoldQueue) -> None:
    """Applies every deadline that has passed (I7)."""
    limits = context.rules.limits
    for job in queue.due(beacon_time.known_moment(context)):
        end = ends.on_deadline if isinstance(job.phase, Rented) else deadlines.on_deadline
        end(context, job)
    for number in queue.rounds():
        if context.rules.timing.appears_at(number) > context.at - limits.beacon_missing_after:
            break
        for job in queue.awaiting(number):
            deadlines.on_missing_round(context, job)
    places.match_waiting(context, queue)
    for job in hold_queue.over(RELEASED_PER_TICK_MAX):
        held_pay.finish_after_window(context, job)
    for job in queue.releasable(context.at):
        held_pay.draw_at_hold_end(context, job)
    payees.vouch(context)
    log_lines.write_before_payroll(context)
    transactions.send_due(context)


def _on_restart(context: StepContext) -> None:
    """CommitSets may not have been delivered, and heartbeats were lost."""
    context.change_own(restarted_at=context.at, is_compared=False)
    for job_id in list(context.state.live.keys()):
        job = context.state.jobs[job_id]
        if isinstance(job.phase, Revealing):
            batches.reclose(context, job)
        elif isinstance(job.phase, Rented):
            ends.hear_again(context, job)
        else:
            hear_again(context, job)
