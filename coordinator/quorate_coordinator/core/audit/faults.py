"""Applies a verdict to providers' records, and opens cases (PROTOCOL §5)."""

from collections import Counter
from collections.abc import Callable

from quorate_coordinator.core.accusations import Case, Fault
from quorate_coordinator.core.audit import bars
from quorate_coordinator.core.effects import Contradiction, Evidence, OpenCase
from quorate_coordinator.core.entities import Job
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.lease import Lease, Revealed
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.limits import CASE_EXECUTIONS_MAX, FAULT_WINDOW_EXECUTIONS, FAULTS_FOR_CASE
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.rules.reputation.fold import KILLS_FOR_STRIKE, Trusts
from quorate_protocol.units import KILLED, Address, Comparator, Hash32, UnixSeconds
from quorate_protocol.values import replace

FAULTS_KEPT = 64
CASES_KEPT = 256
CASE_SECONDS = 10  # time to open a case before the court finds its evidence too old


def judge(context: StepContext, job: Job, faulted: list[Lease]) -> None:
    """Applies what follows for providers whose results were outside the accepted group. The job's
    Summary has changed their trust before.
    """
    for lease in faulted:
        known = context.state.trust.get(lease.provider) or Trusts()
        if is_killed(lease):  # unpaid, and never part of a case
            if not known.kills:
                _note_kills(context, job, lease.provider)
            continue
        fault = Fault(
            lease.assignment_hash,
            job.id,
            job.submission.order.message.client,
            context.at,
            checked=known.checked,
            price=job.split.charged,
            image=image_digest(job.submission.spec.image),
        )
        before = context.state.faults.get(lease.provider) or ()
        context.state.faults[lease.provider] = (*before, fault)[-FAULTS_KEPT:]
        context.note(
            job.id,
            "faulted",
            (
                f"execution {lease.index}: 0x{lease.provider.hex()} is outside the accepted "
                f"group, a "
                f"strike for 90 days"
            ),
        )
        held_pay.reexecute_after_fault(context, lease.provider, job)
        open_case_if_due(context, lease.provider)


def is_killed(lease: Lease) -> bool:
    """Whether the revealed result is a time-out or a memory kill."""
    return isinstance(lease.phase, Revealed) and lease.phase.reveal.exit_status in KILLED


def _note_kills(context: StepContext, job: Job, owner: Address) -> None:
    context.note(
        job.id,
        "faulted",
        (
            f"0x{owner.hex()}: {KILLS_FOR_STRIKE} outvoted time-outs or memory kills, a strike "
            f"for 90 days"
        ),
    )


def open_case_if_due(context: StepContext, accused: Address) -> None:
    """Freezes a provider (it gets no new work) and opens a case if a court would hear its faults.

    The coordinator puts its own bond at risk only over faults of two clients at least, which have
    both spent enough here (`bars.is_backed`). It names two of different clients, or three if the
    court refused the two. A client may open a case over its own jobs with its own bond.
    """
    if context.state.providers[accused].is_frozen or any(
        case.accused == accused and case.is_convicted is None
        for case in context.state.cases.values()
    ):
        return
    due = [
        fault
        for fault in recent(context, accused)
        if not fault.is_case_used and bars.is_backed(context, fault)
    ]
    chosen = _choose_in_one_class(
        context, [fault for fault in due if _can_be_heard(context, fault)]
    )
    if not chosen:
        if bars.is_due(context, due):
            bars.bar(context, accused)
        return
    host_class = _class_of(context, chosen[0])
    executions = tuple(_evidence(context, fault) for fault in chosen)
    key = f"case-{accused.hex()}-{chosen[0].assignment_hash.hex()[:16]}"
    while context.state.cases.get(key) is not None:
        # The court refused the last case, and the sender never sends the same key again.
        key += f"-{context.at}"
    jobs = tuple(fault.job_id for fault in chosen)
    context.state.cases[key] = Case(key, accused, jobs, executions)
    named = {fault.assignment_hash for fault in chosen}
    used = tuple(
        replace(fault, is_case_used=fault.is_case_used or fault.assignment_hash in named)
        for fault in context.state.faults[accused]
    )
    context.state.faults[accused] = used
    context.state.providers[accused] = replace(context.state.providers[accused], is_frozen=True)
    context.emit(OpenCase(key, accused, host_class, executions))
    held_pay.reexecute_all(context, accused)
    for job_id in jobs:
        context.note(job_id, "case", f"a case is opened against 0x{accused.hex()}")


def on_spent(context: StepContext, client: Address) -> None:
    """Opens the cases that waited until this client had spent enough."""
    for owner, known in list(context.state.faults.items()):
        if any(fault.client == client and not fault.is_case_used for fault in known):
            open_case_if_due(context, owner)


def recent(context: StepContext, owner: Address) -> list[Fault]:
    """Returns a provider's faults within its last 300 checked executions. An honest machine that
    errs once in a thousand executions never has enough of them for a case.
    """
    checked = (context.state.trust.get(owner) or Trusts()).checked
    return [
        fault
        for fault in context.state.faults.get(owner) or ()
        if checked - fault.checked < FAULT_WINDOW_EXECUTIONS
    ]


def has_faulted_since(context: StepContext, owner: Address, job: Job) -> bool:
    """Whether a fault of a provider was found after the first verdict on one of its jobs."""
    assert job.held_verdict is not None
    since = job.held_verdict.message.time
    return any(fault.at >= since for fault in context.state.faults.get(owner) or ())


def _can_be_heard(context: StepContext, fault: Fault) -> bool:
    job = context.state.jobs.get(fault.job_id)
    # A job that was archived is too old.
    return job is not None and context.at < _heard_until(context, job, fault)


def _heard_until(context: StepContext, job: Job, fault: Fault) -> UnixSeconds:
    """Returns the time from which no case can name this fault; 0 if no case ever could."""
    lease, order = context.state.leases[fault.assignment_hash], job.submission.order.message
    if (
        fault.is_case_used
        or order.comparator is not Comparator.EXACT
        or not order.caseable
        or _contradiction(context, job, lease) is None
    ):
        return UnixSeconds(0)
    assignment = lease.assignment.message
    if assignment.max_duration > context.rules.limits.case_duration_max // 2:
        return UnixSeconds(0)
    return UnixSeconds(
        assignment.accept_by
        + assignment.max_duration
        + context.rules.limits.case_evidence_age
        - CASE_SECONDS
    )


def heard_until(context: StepContext, job: Job) -> UnixSeconds:
    """Returns the time from which no new case can name an execution of a job."""
    found = [UnixSeconds(0)]
    for digest in job.leases:
        for fault in context.state.faults.get(context.state.leases[digest].provider) or ():
            if fault.assignment_hash == digest:
                found.append(_heard_until(context, job, fault))
    return max(found)


def in_court(context: StepContext) -> frozenset[Hash32]:
    """Returns the jobs that an undecided case names."""
    return frozenset(
        job_id
        for case in context.state.cases.values()
        if case.is_convicted is None
        for job_id in case.jobs
    )


def free_faults(context: StepContext, case: Case, is_for_three: bool) -> None:
    """Lets a case's faults be named again, because the court did not hear it. `is_for_three`: only
    a case of three faults may name them.
    """
    _mark(
        context,
        case,
        lambda fault: replace(
            fault, is_case_used=False, is_for_three=fault.is_for_three or is_for_three
        ),
    )


def mark_judged(context: StepContext, case: Case) -> None:
    """Marks the faults of a case that convicted. The court hears none of them again."""
    _mark(context, case, lambda fault: replace(fault, is_case_used=True))


def _mark(context: StepContext, case: Case, change: Callable[[Fault], Fault]) -> None:
    named = {context.digest(item.assignment.message) for item in case.executions}
    known = context.state.faults.get(case.accused) or ()
    if any(fault.assignment_hash in named for fault in known):
        context.state.faults[case.accused] = tuple(
            change(fault) if fault.assignment_hash in named else fault for fault in known
        )


def known_evidence(
    context: StepContext, assignments: tuple[Hash32, ...], contradictions: tuple[Hash32, ...]
) -> tuple[Evidence, ...]:
    """Returns the evidence of executions that another account's case names, in that order. Empty
    unless the coordinator has the evidence of all of them.
    """
    if len(assignments) != len(contradictions):
        return ()
    found = []
    for digest, opposed in zip(assignments, contradictions, strict=True):
        lease = context.state.leases.get(digest)
        job = None if lease is None else context.state.jobs.get(lease.job_id)
        if lease is None or job is None or not isinstance(lease.phase, Revealed):
            return ()
        against = context.state.leases.get(opposed)
        other = None if against is None else _contradicting(against)
        if other is None:
            return ()
        found.append(_shown(job, lease, other))
    return tuple(found)


def forget_old_cases(context: StepContext) -> None:
    """Deletes all decided cases but the newest `CASES_KEPT`."""
    decided = [case.key for case in context.state.cases.values() if case.is_convicted is not None]
    for key in decided[:-CASES_KEPT]:
        del context.state.cases[key]


def _assignment_of(context: StepContext, fault: Fault) -> Assignment:
    return context.state.leases[fault.assignment_hash].assignment.message


def _class_of(context: StepContext, fault: Fault) -> Hash32:
    return _assignment_of(context, fault).host_class


def _choose_in_one_class(context: StepContext, faults: list[Fault]) -> list[Fault]:
    for host_class in sorted({_class_of(context, fault) for fault in faults}):
        chosen = _choose([fault for fault in faults if _class_of(context, fault) == host_class])
        durations = (_assignment_of(context, fault).max_duration for fault in chosen)
        if chosen and sum(durations) <= context.rules.limits.case_duration_max:
            return chosen
    return []


def _choose(faults: list[Fault]) -> list[Fault]:
    """Chooses two faults of different clients, else three of at least two; the newest ones."""
    pairs = [fault for fault in faults if not fault.is_for_three]
    for newer in reversed(pairs):
        other = next((fault for fault in reversed(pairs) if fault.client != newer.client), None)
        if other is not None:
            return [other, newer]
    newest = faults[-CASE_EXECUTIONS_MAX:]
    if len({fault.client for fault in newest}) == 1:
        other = next((item for item in reversed(faults) if item.client != newest[0].client), None)
        newest = [other, *newest[1:]] if other is not None else []
    return newest if len(newest) >= FAULTS_FOR_CASE else []


def _evidence(context: StepContext, fault: Fault) -> Evidence:
    lease, job = context.state.leases[fault.assignment_hash], context.state.jobs[fault.job_id]
    other = _contradiction(context, job, lease)
    assert other is not None, "a fault that no other result contradicts is in no case"
    return _shown(job, lease, other)


def _contradiction(context: StepContext, job: Job, lease: Lease) -> Contradiction | None:
    """Returns another owner's execution of the job with the result that most of the others found;
    None if there is none that a court hears.
    """
    if not isinstance(lease.phase, Revealed) or is_killed(lease):
        return None
    others = [
        other
        for other in (context.state.leases[digest] for digest in job.leases)
        if isinstance(other.phase, Revealed)
        and not is_killed(other)
        and other.provider != lease.provider
        and other.assignment.message.host_class == lease.assignment.message.host_class
    ]
    counts = Counter(_result(other) for other in others if _result(other) != _result(lease))
    if not counts:
        return None
    likely = counts.most_common(1)[0][0]
    return _contradicting(next(other for other in others if _result(other) == likely))


def _result(lease: Lease) -> Hash32:
    assert isinstance(lease.phase, Revealed)
    return lease.phase.result


def _contradicting(lease: Lease) -> Contradiction | None:
    phase = lease.phase
    if not isinstance(phase, Revealed):
        return None
    return Contradiction(lease.index, lease.blind, lease.assignment, phase.commit, phase.reveal)


def _shown(job: Job, lease: Lease, other: Contradiction) -> Evidence:
    submission, phase = job.submission, lease.phase
    assert isinstance(phase, Revealed)
    return Evidence(
        submission.order,
        submission.session,
        lease.index,
        lease.blind,
        lease.assignment,
        phase.commit,
        phase.reveal,
        other,
    )
