"""Decides a job by the results of its closed batches, and applies the decision (PROTOCOL §5)."""

from collections.abc import Sequence

from quorate_coordinator.core.audit import (
    faults,
    repeats,
    siblings,
    summaries,
    unverifiable,
    windows,
)
from quorate_coordinator.core.audit.batches import committed_leases, drawn_leases, members_of
from quorate_coordinator.core.audit.trust import trust_of
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Job
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import held_pay, ledger, receipts
from quorate_protocol.limits import EXECUTIONS_MAX
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.rules import audit_draw, confirmation, settlement
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.units import Hash32, Label, Outcome, Small, UnixSeconds
from quorate_protocol.units import Sequence as Seq

RESEND_SECONDS = 600
RANDOM = "the program gave two providers two results each, so nobody is faulted"
NOBODY_LEFT = "one result, and no further provider can confirm it"
CAUSES = {
    verdicts.Limit.CLIENT: "too few executions agree within maxExecutions and the budget",
    verdicts.Limit.PROGRAM: "the program gave three providers three results, no two of which agree",
    verdicts.Limit.MARKET: "too few executions agree, and no further provider can be asked",
}


def pay_elapsed(context: StepContext, job: Job, members: list[Lease]) -> Job:
    """The client pays the elapsed time (I4). Nobody repeats the execution, so there is no fault,
    and no trust is earned.
    """
    revealed = [lease for lease in members if isinstance(lease.phase, leases.Revealed)]
    verdict = _sign_verdict(context, job, Outcome.LAPSED, revealed, [])
    job = context.put(job, phase=Decided(verdict, True, context.at))
    context.note(job.id, "verdict", "lapsed: stopped by its client, elapsed time is paid")
    job = ledger.settle(context, job, verdict.message, members)
    return _publish(context, job, verdict, members)


def decide(context: StepContext, job: Job, is_exhausted: bool) -> Job:
    """`is_exhausted`: no provider is left to draw."""
    order = job.order
    members, found = committed_leases(context, job), repeats.results(context, job)
    if job.held_verdict is not None and len(members) == 1:
        # The beacon wanted a re-execution, and no provider could run it.
        return _held_undecided(context, job, members, Outcome.CANNOT_VERIFY, NOBODY_LEFT)
    if confirmation.is_random(found):
        unverifiable.note(context, job)
        return _undecided(context, job, members, Outcome.UNRESOLVED, RANDOM, is_kept=True)
    drawn, empty = drawn_leases(context, job), job.empty_draw
    decision = verdicts.decide(
        job.ack.message.rule,
        order.verify_tier,
        _executions(context, job, confirmation.contradicted(found)),
        order.max_executions,
        is_exhausted or (empty is not None and empty.batch == len(job.batches)),
        settlement.further_affordable(
            order, job.ack.message.fee_bps, ledger.ran(context, job, members)
        ),
        _is_audit_wanted(job),
        ledger.agreement_of(context, job),
    )
    match decision:
        case verdicts.More(count):
            return _escalate(context, job, count)
        case verdicts.Accepted(group, outside):
            agreeing, others = [drawn[i] for i in group], [drawn[i] for i in outside]
            return _confirm(context, job, agreeing, others, found, is_exhausted)
        case verdicts.Unresolved(limit):
            end = Outcome.UNRESOLVED, CAUSES[limit]
        case verdicts.CannotVerify():
            end = Outcome.CANNOT_VERIFY, NOBODY_LEFT
    has_differed = bool(confirmation.contradicted(found))
    is_kept = has_differed or decision != verdicts.Unresolved(verdicts.Limit.MARKET)
    return _undecided(context, job, members, *end, is_kept=is_kept)


def _is_audit_wanted(job: Job) -> bool:
    first = job.batches[0].commit_set.message
    for beacon in job.beacons:
        if beacon.round == first.beacon_round:
            seed = audit_draw.seed(beacon.randomness, job.id, job.secret, 0)
            return audit_draw.is_audited(seed, first.audit_ppm)
    return False


def _confirm(
    context: StepContext,
    job: Job,
    group: list[Lease],
    outside: list[Lease],
    found: list[confirmation.Repeat],
    is_exhausted: bool,
) -> Job:
    """Accepts the group. If somebody gave another result in a determinism class of the group, two
    members of that class repeat it before: the next ones replace those that did not, and then
    owners whom the beacon draws.
    """
    members, result = committed_leases(context, job), leases.result_of(group[0])
    kinds = {lease.assignment_hash: leases.class_of(lease) for lease in members}
    results = [(leases.result_of(lease), kinds[lease.assignment_hash]) for lease in members]
    # Nobody is at fault for a result outside a client's tolerance.
    disputed = confirmation.disputed(results, result) if job.is_exact else frozenset[Hash32]()
    unconfirmed = set[Hash32]()
    for kind in sorted(disputed):
        missing = confirmation.missing(found, result, kind)
        if missing:
            unconfirmed.add(kind)
            of_kind = [lease for lease in group if kinds[lease.assignment_hash] == kind]
            begun = repeats.begin(context, job, of_kind, missing)
            if begun.phase != job.phase:  # `job` may itself be a repeat that nobody answered
                return begun
            job = begun
    is_empty = job.empty_draw is not None and job.empty_draw.batch == len(job.batches)
    is_over = is_exhausted or is_empty
    if unconfirmed and not is_over and len(drawn_leases(context, job)) < EXECUTIONS_MAX:
        return _escalate(context, job, 1)
    wrong = [
        lease
        for lease in members
        if leases.result_of(lease) not in (None, result) and (job.is_exact or lease not in group)
    ]
    silent = [lease for lease in outside if leases.result_of(lease) is None]
    guilty = [lease for lease in wrong if kinds[lease.assignment_hash] in disputed - unconfirmed]
    faulted = [lease for lease in members if lease in guilty or lease in silent]
    drawn = drawn_leases(context, job)
    outvoted = [
        lease
        for lease in wrong
        if lease in drawn and lease not in guilty and not faults.is_killed(lease)
    ]
    return _accept(context, job, group, faulted, outvoted)


def _executions(
    context: StepContext, job: Job, void: frozenset[Hash32]
) -> list[verdicts.Execution]:
    found = []
    for batch in job.batches:
        for lease in () if batch.is_repeat else members_of(context, batch):
            execution = verdicts.Execution(
                lease.assignment_hash,
                lease.provider,
                leases.result_of(lease),
                trust_of(context, job, lease.provider).suspicion_ppm(),
                faults.is_killed(lease),
                len(batch.members) == 1,
            )
            is_void = lease.assignment_hash in void
            found.append(execution.void() if is_void else execution)
    return found


def _escalate(context: StepContext, job: Job, count: int) -> Job:
    """The round follows from when the last batch was closed, so nobody can choose it (I9)."""
    number = len(job.batches)
    later = context.rules.timing.later_round(job.batches[-1].commit_set.message.closed_at)
    further = f"{count} further execution{'' if count == 1 else 's'}"
    context.note(job.id, "escalated", f"not enough agree: {further} after beacon round {later}")
    return context.put(job, phase=AwaitingRound(number, count, later, ()))


def _accept(
    context: StepContext, job: Job, group: list[Lease], faulted: list[Lease], outvoted: list[Lease]
) -> Job:
    rule = job.ack.message.rule
    verdict = _sign_verdict(context, job, Outcome.ACCEPTED, group, faulted)
    name = rule.name.lower().replace("_", "-")
    context.note(
        job.id, "verdict", f"accepted ({name}): {len(group)} agree, {len(faulted)} faulted"
    )
    siblings.note(context, job, group)
    struck = faults.counted(context, job, faulted)
    doubted = faults.counted(context, job, outvoted)
    if job.held_verdict is not None:
        is_again, counted = True, (*group, *struck, *doubted)
        job = held_pay.apply_reexecution(context, job, verdict, group)
    else:
        is_again, counted = False, _audited(context, job, group, [*struck, *doubted])
        job = _settle_accepted(context, job, verdict, group)
    job = _publish(context, job, verdict, committed_leases(context, job), counted, is_again)
    if rule is not Label.UNVERIFIED:
        faults.judge(context, job, faulted, struck)
        faults.doubt(context, job, outvoted, doubted)
    return job


def _audited(
    context: StepContext, job: Job, group: list[Lease], struck: list[Lease]
) -> tuple[Lease, ...]:
    if job.ack.message.rule is Label.UNVERIFIED:
        return ()
    return (*group, *struck) if len(committed_leases(context, job)) > 1 else tuple(struck)


def _settle_accepted(
    context: StepContext, job: Job, verdict: Envelope[Verdict], group: list[Lease]
) -> Job:
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
    context: StepContext,
    job: Job,
    members: list[Lease],
    outcome: Outcome,
    cause: str,
    is_kept: bool,
) -> Job:
    """`settlement.bill` says who pays what ran."""
    if job.held_verdict is not None:
        return _held_undecided(context, job, members, outcome, cause, is_kept)
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
    primary, auditors = members[0], members[1:] if is_kept else []
    is_kept = is_kept and not faults.has_faulted_since(context, primary.provider, job)
    context.note(
        job.id,
        "verdict",
        f"{_name(outcome)}: {cause}; the held pay "
        + ("becomes final" if is_kept else "goes back to the client"),
    )
    if is_kept:
        job = held_pay.keep_held_pay(context, job, verdict, auditors)
    else:
        job = held_pay.refund_held_pay(context, job, verdict, auditors)
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
    """`counted` executions change their providers' trust."""
    job = receipts.publish(context, job)
    summaries.append(context, job, verdict.message, counted, is_again)
    for lease in members:
        key = f"verdict-{lease.assignment_hash.hex()}-{verdict.message.seq}"
        expires = UnixSeconds(context.at + RESEND_SECONDS)
        frame = frames.VerdictSent(lease.assignment_hash, verdict)
        context.emit(Send(key, lease.provider, frame, expires))
    return job
