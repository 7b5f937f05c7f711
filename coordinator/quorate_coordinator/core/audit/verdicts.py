"""Closing a batch, opening its results, deciding (PROTOCOL §5 Batches)."""

from quorate_coordinator.core import assignment
from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import draw, faults
from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.events import RevealReceived
from quorate_coordinator.core.holds import held_pay, windows
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.money import ledger
from quorate_coordinator.core.orders import trust_of
from quorate_coordinator.core.records import receipts
from quorate_coordinator.core.state import (
    AwaitingRound,
    Batch,
    Decided,
    Job,
    Matching,
    Revealing,
    Running,
)
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.codec.quick import replace
from quorate_protocol.crypto.eip712 import struct_hash
from quorate_protocol.crypto.hashing import hash_list
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Commit, CommitEntry, CommitSet, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import verdict as verdicts
from quorate_protocol.rules.audit import is_held
from quorate_protocol.units import Hash32, Label, Outcome, Round, Sequence, Small, UnixSeconds

RESEND_SECONDS = 600
CLOSINGS_MAX = 3
ROUNDS_UNTIL_AGAIN = 5


def close_if_complete(context: StepContext, job: Job) -> None:
    """Closes the batch once every place has committed: from now on its members may reveal."""
    phase = job.phase
    assert isinstance(phase, Running)
    if len(phase.places) < phase.wanted:
        return
    members = [context.state.leases[place.lease] for place in phase.places if place.lease]
    if len(members) < len(phase.places) or not all(
        isinstance(lease.phase, leases.Committed) for lease in members
    ):
        return
    if not members:
        _nobody_drawn(context, job, phase)
        return
    _sign_set(context, job, phase, members)


def _nobody_drawn(context: StepContext, job: Job, phase: Running) -> None:
    """An escalation found nobody: the same draw once more a little later (they may be back),
    then the job is unresolved.
    """
    if not phase.is_again:
        later = Round(draw.newest_round(context) + ROUNDS_UNTIL_AGAIN)
        context.put(job, phase=AwaitingRound(phase.batch, 1, later, (), is_again=True))
        return
    decide(context, job, is_exhausted=True)


def _sign_set(context: StepContext, job: Job, phase: Running, members: list[Lease]) -> None:
    entries = tuple(
        CommitEntry(lease.hash, lease.provider, context.digest(_commit_of(lease).message))
        for lease in members
    )
    message = CommitSet(
        job_id=job.id,
        batch=Small(phase.batch),
        ordered=entries,
        blinds=tuple(lease.blind for lease in members),
        beacon_round=phase.beacon.round if phase.beacon else Round(0),
        secret=job.secret,
        audit_ppm=phase.audit_ppm,
        slots=tuple(Small(place.attempt) for place in phase.places if place.attempt >= 0),
        skips_hash=hash_list(phase.skipped),
        closed_at=draw.known_moment(context),
    )
    slots = tuple(place.slot for place in phase.places)
    job = _open_batch(
        context,
        job,
        Batch(phase.batch, tuple(lease.hash for lease in members), slots, context.seal(message)),
        members,
    )
    context.note(
        job, "closed", f"batch {phase.batch}: {len(members)} commitments are in, results open now"
    )


def _commit_of(lease: Lease) -> Envelope[Commit]:
    phase = lease.phase
    assert isinstance(phase, leases.Committed | leases.Closed | leases.Revealed | leases.Silent), (
        f"{type(phase).__name__} has no commit"
    )
    return phase.commit


def on_reveal(context: StepContext, event: RevealReceived) -> None:
    """A reveal with a ciphertext that opened; one that did not open is silence (the lease runs
    out).
    """
    lease = context.state.leases.get(event.reveal.assignment_hash)
    if lease is None:
        raise Refused(Code.UNKNOWN, f"assignment 0x{event.reveal.assignment_hash.hex()}")
    if not event.has_opened:
        raise Refused(
            Code.DOES_NOT_OPEN,
            "reveal: the stored ciphertext does not open to outputDigest under this salt",
        )
    moved, _ = assignment.move(context, lease, leases.RevealReceived(event.reveal))
    if moved is lease:
        return
    job = context.state.jobs[lease.job_id]
    context.note(job, "revealed", f"execution {lease.index}")
    decide_if_open(context, job)


def decide_if_open(context: StepContext, job: Job) -> None:
    """Decides once every member of the batch has revealed or run out of time."""
    if not isinstance(job.phase, Revealing):
        return
    members = [context.state.leases[digest] for digest in job.phase.batch.members]
    if not all(isinstance(lease.phase, leases.Revealed | leases.Silent) for lease in members):
        return
    if len(job.batches) == 1 and len(members) == 1 and isinstance(members[0].phase, leases.Silent):
        # A batch of one that is not revealed lapses unpaid, and the next provider runs it (reveal
        # demands come later).
        context.note(job, "lapsed", f"execution {members[0].index} was not revealed")
        if job.stop is not None:
            assignment.end(context, job, "stopped by its client, and what it gave was not revealed")
            return
        context.put(
            job,
            phase=Matching(context.at),
            batches=(),
            beacons=(),
            witness=None,
            refused_by=(*job.refused_by, members[0].provider),
        )
        return
    if _was_cut_short(job):
        _pay_elapsed(context, job, members)
        return
    decide(context, job, is_exhausted=False)


def _was_cut_short(job: Job) -> bool:
    """A stopped job's batch is closed without a draw."""
    return job.batches[0].commit_set.message.beacon_round == 0


def _pay_elapsed(context: StepContext, job: Job, members: list[Lease]) -> None:
    """A stop by the client pays elapsed time (I4) and says nothing about anybody: no audit, no
    fault, no trust.
    """
    verdict = _sign_verdict(context, job, Outcome.LAPSED, members, [])
    job = context.put(job, phase=Decided(verdict, True, context.at))
    context.note(job, "verdict", "lapsed: stopped by its client, elapsed time is paid")
    ledger.settle(context, job, members)
    _tell(context, receipts.publish(context, context.state.jobs[job.id]), verdict, members)


def committed_leases(context: StepContext, job: Job) -> list[Lease]:
    """Every lease of the job's closed batches, in CommitSet order."""
    return [lease for batch in job.batches for lease in members_of(context, batch)]


def members_of(context: StepContext, batch: Batch) -> list[Lease]:
    """A batch's leases, in CommitSet order."""
    return [context.state.leases[digest] for digest in batch.members]


def decide(context: StepContext, job: Job, is_exhausted: bool) -> None:
    """Applies the verdict rule to all executions so far."""
    order = job.submission.order.message
    members = committed_leases(context, job)
    executions = [
        _execution(context, job, lease, len(batch.members))
        for batch in job.batches
        for lease in members_of(context, batch)
    ]
    if job.held_verdict is not None and len(members) == 1:
        _unresolved(
            context, job, members, is_clients_doing=False
        )  # drawn to be executed again, and nobody could
        return
    decision = verdicts.decide(
        job.ack.message.rule, order.verify_tier, executions, order.max_executions, is_exhausted
    )
    match decision:
        case verdicts.More(count):
            _escalate(context, job, count)
        case verdicts.Accepted(group, faulted):
            _accept(context, job, [members[i] for i in group], [members[i] for i in faulted])
        case verdicts.Unresolved(is_clients_doing):
            _unresolved(context, job, members, is_clients_doing)


def _execution(context: StepContext, job: Job, lease: Lease, size: int) -> verdicts.Execution:
    suspicion = trust_of(context, job, lease.provider).suspicion_ppm()
    return verdicts.Execution(
        lease.hash, lease.provider, _result_of(lease), suspicion, faults.is_killed(lease), size == 1
    )


def _result_of(lease: Lease) -> Hash32 | None:
    return lease.phase.result if isinstance(lease.phase, leases.Revealed) else None


def _escalate(context: StepContext, job: Job, count: int) -> None:
    """A fresh batch, drawn by the round that follows from the moment at which the last one was
    closed: nobody may choose it (I9).
    """
    number = len(job.batches)
    later = context.rules.timing.later_round(job.batches[-1].commit_set.message.closed_at)
    context.put(job, phase=AwaitingRound(number, count, later, ()))
    context.note(
        job,
        "escalated",
        (
            f"not enough agree: {count} further execution{'' if count == 1 else 's'} after beacon "
            f"round {later}"
        ),
    )


def _accept(context: StepContext, job: Job, group: list[Lease], faulted: list[Lease]) -> None:
    rule = job.ack.message.rule
    audited = len(committed_leases(context, job)) > 1
    verdict = _sign_verdict(context, job, Outcome.ACCEPTED, group, faulted)
    context.note(
        job,
        "verdict",
        (
            f"accepted ({rule.name.lower().replace('_', '-')}): {len(group)} agree, {len(faulted)} "
            f"faulted"
        ),
    )
    if job.held_verdict is not None:
        held_pay.confirmed_or_caught(context, job, verdict, group, faulted)
        faults.judge(context, context.state.jobs[job.id], group, faulted)
        _tell(
            context,
            receipts.publish(context, context.state.jobs[job.id]),
            verdict,
            committed_leases(context, job),
        )
        return
    is_provisional = is_held(rule, audited)
    hold_until = (
        UnixSeconds(context.at + context.rules.limits.max_hold) if is_provisional else context.at
    )
    job = context.put(job, phase=Decided(verdict, not is_provisional, hold_until))
    primary = context.state.leases[job.batches[0].members[0]]
    if rule is Label.ADAPTIVE and primary in group:
        windows.advance(context, job, primary)
    if is_provisional:
        windows.hold(context, job, primary)
    # Under the adaptive rule audits are paid by the fund that the premiums fill, and the client
    # pays one execution: but for the audit that its own absence has caused (PROTOCOL §4).
    billed = group[: 2 if ledger.is_audit_billed(job) else 1] if rule is Label.ADAPTIVE else group
    ledger.settle(context, job, billed)
    ledger.pay_from_fund(context, context.state.jobs[job.id], group[len(billed) :])
    if rule is not Label.UNVERIFIED:
        faults.judge(context, context.state.jobs[job.id], group if audited else [], faulted)
    _tell(
        context,
        receipts.publish(context, context.state.jobs[job.id]),
        verdict,
        committed_leases(context, job),
    )


def _unresolved(
    context: StepContext, job: Job, members: list[Lease], is_clients_doing: bool
) -> None:
    verdict = _sign_verdict(context, job, Outcome.UNRESOLVED, [], [])
    if job.held_verdict is not None:
        held_pay.gone(context, job, verdict)
        context.note(
            job,
            "verdict",
            "unresolved: it could not be executed again, and the held pay goes back to the client",
        )
        _tell(context, receipts.publish(context, context.state.jobs[job.id]), verdict, members)
        return
    job = context.put(job, phase=Decided(verdict, True, context.at))
    cause = (
        "the program gives different results"
        if is_clients_doing
        else "too few agree and nobody else can be asked"
    )
    context.note(job, "verdict", f"unresolved: {cause}")
    ran = [lease for lease in members if isinstance(lease.phase, leases.Revealed)]
    ledger.settle(context, job, ran if is_clients_doing else [])
    if not is_clients_doing:
        ledger.pay_from_fund(context, context.state.jobs[job.id], ran)
    _tell(context, receipts.publish(context, context.state.jobs[job.id]), verdict, members)


def _sign_verdict(
    context: StepContext, job: Job, outcome: Outcome, group: list[Lease], faulted: list[Lease]
) -> Envelope[Verdict]:
    seq = Sequence(context.state.own.verdict_seq + 1)
    context.books(verdict_seq=seq)
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
        group=tuple(lease.hash for lease in group),
        faulted=tuple(lease.hash for lease in faulted),
        evidence_hash=hash_list(tuple(struct_hash(reveal) for reveal in revealed)),
        time=context.at,
    )
    return context.seal(message)


def _tell(context: StepContext, job: Job, verdict: Envelope[Verdict], members: list[Lease]) -> None:
    for lease in members:
        frame = frames.VerdictSent(lease.hash, verdict)
        context.emit(
            Send(
                f"verdict-{lease.hash.hex()}-{verdict.message.seq}",
                lease.provider,
                frame,
                UnixSeconds(context.at + RESEND_SECONDS),
            )
        )


def _open_batch(context: StepContext, job: Job, batch: Batch, members: list[Lease]) -> Job:
    """Tells the members that still have to reveal; their time counts from the newest closing."""
    for lease in members:
        assignment.move(context, lease, leases.BatchClosed(context.at))
        frame = frames.CommitSetSent(lease.hash, batch.commit_set)
        expires = UnixSeconds(context.at + context.rules.limits.reveal_within)
        context.emit(
            Send(f"close-{lease.hash.hex()}-{batch.closings}", lease.provider, frame, expires)
        )
    others = tuple(item for item in job.batches if item.number != batch.number)
    return context.put(job, phase=Revealing(batch), batches=(*others, batch))


def reclose(context: StepContext, job: Job) -> None:
    """A set that was not delivered (a restart, a short absence) is signed again with a new
    closedAt and nothing else changed.
    """
    assert isinstance(job.phase, Revealing)
    old = job.phase.batch
    missing = [
        lease
        for lease in (context.state.leases[digest] for digest in old.members)
        if isinstance(lease.phase, leases.Closed)
    ]
    if not missing or old.closings >= CLOSINGS_MAX:
        return
    renewed = replace(old.commit_set.message, closed_at=draw.known_moment(context))
    _open_batch(
        context,
        job,
        replace(old, commit_set=context.seal(renewed), closings=old.closings + 1),
        missing,
    )


def reclose_if_slow(context: StepContext, job: Job) -> None:
    """Providers refuse a set older than one beacon period, so silence for longer means that it
    did not reach them.
    """
    assert isinstance(job.phase, Revealing)
    if (
        draw.known_moment(context)
        > job.phase.batch.commit_set.message.closed_at + context.rules.limits.beacon_period + 1
    ):
        reclose(context, job)
