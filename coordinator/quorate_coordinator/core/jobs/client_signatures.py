"""Applies what a client signs about a running job: witness and stop."""

from quorate_coordinator.core.audit.assignment import end_unpaid, step_lease
from quorate_coordinator.core.jobs.advance import advance
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    BatchPlace,
    Decided,
    Ended,
    Job,
    Matching,
    Revealing,
    Running,
)
from quorate_coordinator.core.model.events import StopReceived, WitnessReceived
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Witness
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import settlement
from quorate_protocol.units import ZERO_HASH, Amount, Label, Milliseconds, UnixSeconds
from quorate_protocol.values import replace


def on_witness(context: StepContext, event: WitnessReceived) -> None:
    """Raises Refused if it comes after the commit's beacon round."""
    message: Witness = event.witness.message
    job = _job_of(context, message)
    order = job.order
    wanted = (
        {order.witness}
        if order.witness != bytes(20)
        else {job.submission.session.message.session_key}
    )
    if event.key not in wanted:
        raise Refused(
            Code.WRONG_SIGNER,
            "witness: neither the client's session nor the watcher that the order names",
        )
    if job.witness == event.witness:
        return
    if message.ack_hash != context.digest(job.ack.message):
        raise Refused(Code.UNKNOWN, "witness: its ackHash is not the digest of this job's Ack")
    is_awaited = (
        isinstance(job.phase, AwaitingRound)
        and not job.phase.batch
        and message.beacon_round == job.phase.round
    )
    if not is_awaited or beacon_time.newest_round(context) >= message.beacon_round:
        raise Refused(Code.TOO_LATE, "witness: the commit's beacon round is not awaited any more")
    context.put(job, witness=event.witness)
    context.note(job.id, "witnessed", f"before beacon round {message.beacon_round}")


def _job_of(context: StepContext, witness: Witness) -> Job:
    """The Witness of a fast job names no Commit, because its Ack alone fixes the draw."""
    is_fast = witness.commit_hash == ZERO_HASH
    named = witness.ack_hash if is_fast else witness.commit_hash
    job_id = context.state.commits.get(named)
    if job_id is None or context.state.jobs[job_id].is_fast != is_fast:
        what = "fast job's Ack" if is_fast else "primary's commit"
        raise Refused(Code.UNKNOWN, f"witness: no {what} 0x{named.hex()}")
    return context.state.jobs[job_id]


def stopped_job(context: StepContext, event: StopReceived) -> Job:
    """Raises Refused unless the key that signed the Stop ordered the job."""
    job = context.state.jobs.get(event.stop.message.job_id)
    if job is None or event.key != job.submission.session.message.session_key:
        # One answer for both, so that a stranger does not learn which jobs exist.
        raise Refused(
            Code.UNKNOWN,
            f"stop: the key that signed it ordered no job 0x{event.stop.message.job_id.hex()}",
        )
    return job


def on_stop(context: StepContext, job: Job, event: StopReceived) -> None:
    """A running execution then commits its elapsed time, and the money for the rest is free at
    once. A job that no provider has accepted ends unpaid.
    """
    is_undrawn = isinstance(job.phase, AwaitingRound) and job.is_drawing_first
    if is_undrawn or isinstance(job.phase, Matching):
        end_unpaid(context, job, "stopped by its client before it ran")
        return
    has_its_result = isinstance(job.phase, Revealing) and job.ack.message.rule is Label.UNVERIFIED
    if has_its_result or isinstance(job.phase, Decided | Ended):
        return
    if job.is_escrowed:
        raise Refused(
            Code.UNSUPPORTED,
            "stop: its escrow pays only what two owners agree on, so it runs to its end",
        )
    if job.stop is None:
        job = context.put(job, stop=event.stop)
        context.note(job.id, "stopped", "by its client")
    is_cut_short = isinstance(job.phase, Running) and (
        job.is_drawing_first or not (job.phase.batch or job.phase.beacon)
    )
    if is_cut_short:  # otherwise it has committed, so its verdict ends it soon
        _cut_short(context, job, event)


def _cut_short(context: StepContext, job: Job, event: StopReceived) -> None:
    """Those that run the job commit what they have. It is not compared, so what drew a fast job's
    providers no longer matters.
    """
    assert isinstance(job.phase, Running)
    kept: list[BatchPlace] = []
    most = 0
    for place in job.phase.places:
        lease = context.state.leases.get(place.assignment_hash or ZERO_HASH)
        if lease is None:
            continue
        moved, _ = step_lease(context, lease, leases.ClientStopped())
        if isinstance(moved.phase, leases.Accepted | leases.Committed):
            kept.append(replace(place, attempt=-1))
            most += _costs(context, job, moved)
        frame = frames.StopSent(lease.assignment_hash, event.stop)
        context.emit(
            Send(
                f"stop-{lease.assignment_hash.hex()}",
                lease.provider,
                frame,
                UnixSeconds(context.at + 600),
            )
        )
    if not kept:
        end_unpaid(context, job, "stopped by its client before it ran")
        return
    job = ledger.lower_reservation(context, job, Amount(most))
    undrawn = Running(0, len(kept), tuple(kept), 0, None, ())
    advance(context, context.put(job, phase=undrawn))


def _costs(context: StepContext, job: Job, lease: Lease) -> Amount:
    """The most that a stopped execution can still cost, with the fee."""
    assignment, order = lease.assignment.message, job.order
    payable = Milliseconds(assignment.max_duration * 1000)
    if isinstance(lease.phase, leases.Accepted):
        within = context.rules.limits.accept_within
        payable = settlement.payable_usage(payable, assignment, lease.phase.commit_by, within)
    return settlement.cost_of(order, 1, payable // 1000, job.ack.message.fee_bps)
