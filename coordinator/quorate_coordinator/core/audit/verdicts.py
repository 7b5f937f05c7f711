"""Decides a job by the results of its closed batches, and applies the decision (PROTOCOL §5)."""

from collections.abc import Sequence

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import beacon_time, faults, repeats, unverifiable
from quorate_coordinator.core.audit.batches import committed_leases, drawn_leases, members_of
from quorate_coordinator.core.audit.trust import trust_of
from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.entities import AwaitingRound, Decided, Job, Running
from quorate_coordinator.core.holds import held_pay, windows
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.money import ledger
from quorate_coordinator.core.records import receipts, summaries
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.rules import audit_draw, confirmation, settlement
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.units import Label, Outcome, Small, UnixSeconds
from quorate_protocol.units import Sequence as Seq

RESEND_SECONDS = 600
NOBODY_LEFT = "one result, and no further provider can confirm it"
CAUSES = {
    verdicts.Limit.CLIENT: "too few executions agree within maxExecutions and the budget",
    verdicts.Limit.MARKET: "too few executions agree, and no further provider can be asked",
}


def pay_elapsed(context: StepContext, job: Job, members: list[Lease]) -> Job:
    """Decides a job that its client stopped: the client pays the elapsed time (I4). Nobody repeats
    the execution, so there is no fault, and no trust is earned.
    """
    verdict = _sign_verdict(context, job, Outcome.LAPSED, members, [])
    job = context.put(job, phase=Decided(verdict, True, context.at))
    context.note(job.id, "verdict", "lapsed: stopped by its client, elapsed time is paid")
    job = ledger.settle(context, job, verdict.message, members)
    return _publish(context, job, verdict, members)


def decide(context: StepContext, job: Job, is_exhausted: bool) -> Job:
    """Applies the verdict rule to all executions so far. `is_exhausted`: no provider is left to
    draw.
    """
    if job.agreed:
        return _decide_repeated(context, job)
    order = job.submission.order.message
    members = committed_leases(context, job)
    executions = [
        _execution(context, job, lease, len(batch.members))
        for batch in job.batches
        for lease in members_of(context, batch)
    ]
    if job.held_verdict is not None and len(members) == 1:
        # The beacon wanted a re-execution, and no provider could run it.
        return _held_undecided(context, job, members, Outcome.CANNOT_VERIFY, NOBODY_LEFT)
    decision = verdicts.decide(
        job.ack.message.rule,
        order.verify_tier,
        executions,
        order.max_executions,
        is_exhausted,
        settlement.further_affordable(
            order, job.ack.message.fee_bps, ledger.ran(context, job, members)
        ),
        _is_audit_wanted(job),
    )
    match decision:
        case verdicts.More(count):
            return _escalate(context, job, count)
        case verdicts.Accepted(group, faulted):
            agreeing, others = [members[i] for i in group], [members[i] for i in faulted]
            if repeats.are_due(job, others):
                return _confirm(context, job, agreeing)
            return _accept(context, job, agreeing, others)
        case verdicts.Unresolved(limit):
            end = Outcome.UNRESOLVED, CAUSES[limit]
        case verdicts.CannotVerify():
            end = Outcome.CANNOT_VERIFY, NOBODY_LEFT
    if job.held_verdict is not None:
        is_kept = decision != verdicts.Unresolved(verdicts.Limit.MARKET)
        return _held_undecided(context, job, members, *end, is_kept=is_kept)
    return _undecided(context, job, members, *end)


def _is_audit_wanted(job: Job) -> bool:
    """Whether the beacon round of the first batch wanted an audit."""
    first = job.batches[0].commit_set.message
    for beacon in job.beacons:
        if beacon.round == first.beacon_round:
            seed = audit_draw.seed(beacon.randomness, job.id, job.secret, 0)
            return audit_draw.is_audited(seed, first.audit_ppm)
    return False


def _confirm(context: StepContext, job: Job, group: list[Lease]) -> Job:
    """Has two members of the group repeat the job. Decides at once if none of them can be asked,
    because then no answer and no deadline comes.
    """
    job = repeats.begin(context, job, group)
    is_nobody = isinstance(job.phase, Running) and not job.phase.wanted
    return decide(context, job, is_exhausted=False) if is_nobody else job


def _decide_repeated(context: StepContext, job: Job) -> Job:
    """Decides a job whose accepted group was asked to repeat it, because others differ.

    They are faulted only if two members repeated their result. If a member gave two results, the
    program is at fault, and its client pays what ran.
    """
    found, members = repeats.results(context, job), committed_leases(context, job)
    if confirmation.has_differed(found):
        unverifiable.note(context, job)
        end = Outcome.UNRESOLVED, "the program gave one provider two results, so nobody is faulted"
        if job.held_verdict is not None:
            return _held_undecided(context, job, members, *end)
        return _undecided(context, job, members, *end)
    drawn = drawn_leases(context, job)
    group = [lease for lease in drawn if lease.assignment_hash in job.agreed]
    alone = {batch.members[0] for batch in job.batches if len(batch.members) == 1}
    unlapsed = [
        lease
        for lease in drawn
        if not verdicts.has_lapsed(
            _execution(context, job, lease, 1 if lease.assignment_hash in alone else 2)
        )
    ]
    is_confirmed = confirmation.is_confirmed(found)
    faulted = [
        lease
        for lease in drawn
        if lease not in group
        and (is_confirmed if isinstance(lease.phase, leases.Revealed) else lease in unlapsed)
    ]
    return _accept(context, job, group, faulted)


def _execution(context: StepContext, job: Job, lease: Lease, size: int) -> verdicts.Execution:
    suspicion = trust_of(context, job, lease.provider).suspicion_ppm()
    return verdicts.Execution(
        lease.assignment_hash,
        lease.provider,
        leases.result_of(lease),
        suspicion,
        faults.is_killed(lease),
        size == 1,
    )


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
    struck = faults.counted(context, job, faulted)
    if job.held_verdict is not None:
        is_again, counted = True, (*group, *struck)
        job = held_pay.apply_reexecution(context, job, verdict, group)
    else:
        is_again, counted = False, _audited(context, job, group, struck)
        job = _settle_accepted(context, job, verdict, group)
    job = _publish(context, job, verdict, committed_leases(context, job), counted, is_again)
    if rule is not Label.UNVERIFIED:
        faults.judge(context, job, faulted, struck)
    return job


def _audited(
    context: StepContext, job: Job, group: list[Lease], struck: list[Lease]
) -> tuple[Lease, ...]:
    """Returns the executions that change their providers' trust: those that an audit compared, and
    of the faulted ones those that count.
    """
    if job.ack.message.rule is Label.UNVERIFIED:
        return ()
    return (*group, *struck) if len(committed_leases(context, job)) > 1 else tuple(struck)


def _settle_accepted(
    context: StepContext, job: Job, verdict: Envelope[Verdict], group: list[Lease]
) -> Job:
    """Applies the first accepted verdict of a job: hold, charge and pay."""
    rule = job.ack.message.rule
    is_audited = len(committed_leases(context, job)) > 1
    is_provisional = audit_draw.is_held(rule, is_audited)
    hold_until = (
        UnixSeconds(context.at + context.rules.limits.max_hold) if is_provisional else context.at
    )
    job = context.put(job, phase=Decided(verdict, not is_provisional, hold_until))
    primary = context.state.leases[job.batches[0].members[0]]
    if rule is Label.ADAPTIVE and primary in group:
        windows.advance(context, job, primary)
    if is_provisional:
        windows.hold(context, job, primary)
    return ledger.settle(context, job, verdict.message, committed_leases(context, job))


def _undecided(
    context: StepContext, job: Job, members: list[Lease], outcome: Outcome, cause: str
) -> Job:
    """Ends a job that has no accepted result. `settlement.bill` says who pays what ran."""
    verdict = _sign_verdict(context, job, outcome, [], [])
    job = context.put(job, phase=Decided(verdict, True, context.at))
    context.note(job.id, "verdict", f"{_name(outcome)}: {cause}")
    job = ledger.settle(context, job, verdict.message, members)
    return _publish(context, job, verdict, members)


def _held_undecided(
    context: StepContext,
    job: Job,
    members: list[Lease],
    outcome: Outcome,
    cause: str,
    is_kept: bool = True,
) -> Job:
    """Ends a re-execution that has no accepted result.

    The client has read the output and was charged for it, so the charge stands (`is_kept`). It gets
    the held pay back if results differ and nobody is left to decide, or if a fault of the provider
    was found since: then nobody vouches for the result.
    """
    verdict = _sign_verdict(context, job, outcome, [], [])
    primary = members[0]
    is_kept = is_kept and not faults.has_faulted_since(context, primary.provider, job)
    context.note(
        job.id,
        "verdict",
        f"{_name(outcome)}: {cause}; the held pay "
        + ("becomes final" if is_kept else "goes back to the client"),
    )
    if is_kept:
        job = held_pay.keep_held_pay(context, job, verdict, members)
    else:
        job = held_pay.refund_held_pay(context, job, verdict, members)
    return _publish(context, job, verdict, members, is_again=True)


def _name(outcome: Outcome) -> str:
    return outcome.name.lower().replace("_", "-")


def _sign_verdict(
    context: StepContext, job: Job, outcome: Outcome, group: list[Lease], faulted: list[Lease]
) -> Envelope[Verdict]:
    seq = Seq(context.state.own.verdict_seq + 1)
    context.change_own(verdict_seq=seq)
    batches = len(job.batches)
    evidence = receipts.evidence(context.state, context.rules, job, outcome, batches)
    evidence_hash = evidence.digest()
    context.evidence[evidence_hash] = evidence
    message = Verdict(
        job_id=job.id,
        seq=seq,
        label=job.ack.message.rule,
        outcome=outcome,
        batches=Small(batches),
        group=tuple(lease.assignment_hash for lease in group),
        faulted=tuple(lease.assignment_hash for lease in faulted),
        read=tuple(
            lease.assignment_hash
            for lease in committed_leases(context, job)
            if lease.assignment_hash in job.read
        ),
        evidence_hash=evidence_hash,
        time=max(beacon_time.known_moment(context), job.batches[-1].commit_set.message.closed_at),
    )
    return context.seal(message)


def _publish(
    context: StepContext,
    job: Job,
    verdict: Envelope[Verdict],
    members: list[Lease],
    counted: Sequence[Lease] = (),
    is_again: bool = False,
) -> Job:
    """Stores the job's receipt, appends its line to the public log, and sends the verdict to the
    members' providers. `counted` executions change their providers' trust.
    """
    job = receipts.publish(context, job)
    summaries.append(context, job, verdict.message, counted, is_again)
    for lease in members:
        key = f"verdict-{lease.assignment_hash.hex()}-{verdict.message.seq}"
        expires = UnixSeconds(context.at + RESEND_SECONDS)
        frame = frames.VerdictSent(lease.assignment_hash, verdict)
        context.emit(Send(key, lease.provider, frame, expires))
    return job
