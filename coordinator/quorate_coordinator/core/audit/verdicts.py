"""Decides a job by the results of its closed batches, and applies the decision (PROTOCOL §5)."""

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import faults
from quorate_coordinator.core.audit.batches import committed_leases, members_of
from quorate_coordinator.core.audit.trust import trust_of
from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.entities import AwaitingRound, Decided, Job
from quorate_coordinator.core.holds import held_pay, windows
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.money import ledger
from quorate_coordinator.core.records import receipts
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.crypto.eip712 import struct_hash
from quorate_protocol.crypto.hashing import hash_list
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.rules.audit_draw import is_held
from quorate_protocol.units import Hash32, Label, Outcome, Sequence, Small, UnixSeconds

RESEND_SECONDS = 600


def pay_elapsed(context: StepContext, job: Job, members: list[Lease]) -> Job:
    """Decides a job that its client stopped: the client pays the elapsed time (I4). Nobody repeats
    the execution, so there is no fault, and no trust is earned.
    """
    verdict = _sign_verdict(context, job, Outcome.LAPSED, members, [])
    job = context.put(job, phase=Decided(verdict, True, context.at))
    context.note(job.id, "verdict", "lapsed: stopped by its client, elapsed time is paid")
    job = ledger.settle(context, job, members)
    return _publish(context, job, verdict, members)


def decide(context: StepContext, job: Job, is_exhausted: bool) -> Job:
    """Applies the verdict rule to all executions so far. `is_exhausted`: no provider is left to
    draw.
    """
    order = job.submission.order.message
    members = committed_leases(context, job)
    executions = [
        _execution(context, job, lease, len(batch.members))
        for batch in job.batches
        for lease in members_of(context, batch)
    ]
    if job.held_verdict is not None and len(members) == 1:
        # The beacon wanted a re-execution, and no provider could run it.
        return _unresolved(context, job, members, is_clients_doing=False)
    decision = verdicts.decide(
        job.ack.message.rule, order.verify_tier, executions, order.max_executions, is_exhausted
    )
    match decision:
        case verdicts.More(count):
            return _escalate(context, job, count)
        case verdicts.Accepted(group, faulted):
            return _accept(context, job, [members[i] for i in group], [members[i] for i in faulted])
        case verdicts.Unresolved(is_clients_doing):
            return _unresolved(context, job, members, is_clients_doing)


def _execution(context: StepContext, job: Job, lease: Lease, size: int) -> verdicts.Execution:
    suspicion = trust_of(context, job, lease.provider).suspicion_ppm()
    return verdicts.Execution(
        lease.assignment_hash,
        lease.provider,
        _result_of(lease),
        suspicion,
        faults.is_killed(lease),
        size == 1,
    )


def _result_of(lease: Lease) -> Hash32 | None:
    return lease.phase.result if isinstance(lease.phase, leases.Revealed) else None


def _escalate(context: StepContext, job: Job, count: int) -> Job:
    """Makes the job wait for a further batch. Its round follows from the moment at which the last
    batch was closed, so nobody can choose it (I9).
    """
    number = len(job.batches)
    later = context.rules.timing.later_round(job.batches[-1].commit_set.message.closed_at)
    further = f"{count} further execution{'' if count == 1 else 's'}"
    context.note(job.id, "escalated", f"not enough agree: {further} after beacon round {later}")
    return context.put(job, phase=AwaitingRound(number, count, later, ()))


def _accept(context: StepContext, job: Job, group: list[Lease], faulted: list[Lease]) -> Job:
    rule = job.ack.message.rule
    verdict = _sign_verdict(context, job, Outcome.ACCEPTED, group, faulted)
    name = rule.name.lower().replace("_", "-")
    context.note(
        job.id, "verdict", f"accepted ({name}): {len(group)} agree, {len(faulted)} faulted"
    )
    if job.held_verdict is not None:
        job = held_pay.apply_reexecution(context, job, verdict, group, faulted)
        faults.judge(context, job, group, faulted)
    else:
        job = _settle_accepted(context, job, verdict, group, faulted)
    return _publish(context, job, verdict, committed_leases(context, job))


def _settle_accepted(
    context: StepContext,
    job: Job,
    verdict: Envelope[Verdict],
    group: list[Lease],
    faulted: list[Lease],
) -> Job:
    """Applies the first accepted verdict of a job: hold, charge, pay, trust and faults."""
    rule = job.ack.message.rule
    is_audited = len(committed_leases(context, job)) > 1
    is_provisional = is_held(rule, is_audited)
    hold_until = (
        UnixSeconds(context.at + context.rules.limits.max_hold) if is_provisional else context.at
    )
    job = context.put(job, phase=Decided(verdict, not is_provisional, hold_until))
    primary = context.state.leases[job.batches[0].members[0]]
    if rule is Label.ADAPTIVE and primary in group:
        windows.advance(context, job, primary)
    if is_provisional:
        windows.hold(context, job, primary)
    # Under the adaptive rule, premiums fill a fund that pays for audits, and the client pays one
    # execution. If the client's own absence caused the audit, it pays two (PROTOCOL §4).
    billed = group[: 2 if ledger.is_audit_billed(job) else 1] if rule is Label.ADAPTIVE else group
    job = ledger.settle(context, job, billed)
    ledger.pay_from_fund(context, job, group[len(billed) :])
    if rule is not Label.UNVERIFIED:
        faults.judge(context, job, group if is_audited else [], faulted)
    return job


def _unresolved(
    context: StepContext, job: Job, members: list[Lease], is_clients_doing: bool
) -> Job:
    verdict = _sign_verdict(context, job, Outcome.UNRESOLVED, [], [])
    if job.held_verdict is not None:
        job = held_pay.refund_held_pay(context, job, verdict)
        context.note(
            job.id,
            "verdict",
            "unresolved: it could not be executed again, and the held pay goes back to the client",
        )
        return _publish(context, job, verdict, members)
    job = context.put(job, phase=Decided(verdict, True, context.at))
    cause = (
        "the program gives different results"
        if is_clients_doing
        else "too few executions agree, and no further provider can be asked"
    )
    context.note(job.id, "verdict", f"unresolved: {cause}")
    ran = [lease for lease in members if isinstance(lease.phase, leases.Revealed)]
    job = ledger.settle(context, job, ran if is_clients_doing else [])
    if not is_clients_doing:
        ledger.pay_from_fund(context, job, ran)
    return _publish(context, job, verdict, members)


def _sign_verdict(
    context: StepContext, job: Job, outcome: Outcome, group: list[Lease], faulted: list[Lease]
) -> Envelope[Verdict]:
    seq = Sequence(context.state.own.verdict_seq + 1)
    context.change_own(verdict_seq=seq)
    revealed = [
        lease.phase.reveal
        for lease in committed_leases(context, job)
        if isinstance(lease.phase, leases.Revealed)
    ]
    message = Verdict(
        job_id=job.id,
        seq=seq,
        label=job.ack.message.rule,
        outcome=outcome,
        batches=Small(len(job.batches)),
        group=tuple(lease.assignment_hash for lease in group),
        faulted=tuple(lease.assignment_hash for lease in faulted),
        evidence_hash=hash_list(tuple(struct_hash(reveal) for reveal in revealed)),
        time=context.at,
    )
    return context.seal(message)


def _publish(
    context: StepContext, job: Job, verdict: Envelope[Verdict], members: list[Lease]
) -> Job:
    """Stores the job's receipt and sends the verdict to the members' providers."""
    job = receipts.publish(context, job)
    for lease in members:
        key = f"verdict-{lease.assignment_hash.hex()}-{verdict.message.seq}"
        expires = UnixSeconds(context.at + RESEND_SECONDS)
        frame = frames.VerdictSent(lease.assignment_hash, verdict)
        context.emit(Send(key, lease.provider, frame, expires))
    return job
