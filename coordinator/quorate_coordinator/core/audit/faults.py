"""Applies a verdict to providers' records, and opens cases (PROTOCOL §5)."""

from collections.abc import Callable

from quorate_coordinator.core.audit.trust import trust_class_of, trust_of
from quorate_coordinator.core.effects import Evidence, OpenCase
from quorate_coordinator.core.entities import Case, Fault, Job, Trusts
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.lease import Lease, Revealed
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.limits import CASE_EXECUTIONS_MAX, FAULT_WINDOW_EXECUTIONS, FAULTS_FOR_CASE
from quorate_protocol.rules import trust_record as trusts
from quorate_protocol.units import KILLED, Address, Comparator, Hash32, UnixSeconds
from quorate_protocol.values import replace

FAULTS_KEPT = 64
KILLS_FOR_STRIKE = 3
CASES_KEPT = 256
CASE_SECONDS = 10  # time to open a case before the court finds its evidence too old


def judge(context: StepContext, job: Job, passed: list[Lease], faulted: list[Lease]) -> None:
    """Records which providers passed an audit and which were outside the accepted group."""
    for lease in passed:
        _count(context, lease.provider)
        _record(context, job, lease.provider, has_passed=True)
    for lease in faulted:
        checked = _count(context, lease.provider)
        if is_killed(lease):
            _outvoted_kill(context, job, lease.provider)  # unpaid, and never part of a case
            continue
        _record(context, job, lease.provider, has_passed=False)
        fault = Fault(
            lease.assignment_hash,
            job.id,
            job.submission.order.message.client,
            context.at,
            checked=checked,
        )
        known = context.state.faults.get(lease.provider) or ()
        context.state.faults[lease.provider] = (*known, fault)[-FAULTS_KEPT:]
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


def _outvoted_kill(context: StepContext, job: Job, owner: Address) -> None:
    """Counts a time-out or memory kill that the other executions outvoted. A slow or small machine
    may be honest, so only every third one in 90 days is a strike.
    """
    known = context.state.trust.get(owner) or Trusts()
    kills = (*(at for at in known.kills if context.at - at < trusts.STRIKE_SECONDS), context.at)
    is_strike = len(kills) >= KILLS_FOR_STRIKE
    context.state.trust[owner] = replace(known, kills=() if is_strike else kills)
    if is_strike:
        _record(context, job, owner, has_passed=False)
        context.note(
            job.id,
            "faulted",
            (
                f"0x{owner.hex()}: {KILLS_FOR_STRIKE} outvoted time-outs or memory kills, a strike "
                f"for 90 days"
            ),
        )


def _count(context: StepContext, owner: Address) -> int:
    known = context.state.trust.get(owner) or Trusts()
    context.state.trust[owner] = replace(known, checked=known.checked + 1)
    return known.checked + 1


def _record(context: StepContext, job: Job, owner: Address, has_passed: bool) -> None:
    after = trusts.after_audit(trust_of(context, job, owner), has_passed, context.at)
    known = context.state.trust.get(owner) or Trusts()
    context.state.trust[owner] = replace(
        known, by_class={**known.by_class, trust_class_of(job): after}
    )


def open_case_if_due(context: StepContext, accused: Address) -> None:
    """Freezes a provider (it gets no new work) and opens a case if a court would hear its faults.

    A court hears two faults on jobs with an exact comparator of different clients, or three faults
    in all.
    """
    if context.state.providers[accused].is_frozen or any(
        case.accused == accused and case.is_convicted is None
        for case in context.state.cases.values()
    ):
        return
    due = [fault for fault in recent(context, accused) if not fault.is_case_used]
    chosen = _choose_in_one_class(
        context, [fault for fault in due if _can_be_heard(context, fault)]
    )
    if not chosen:
        if _is_due(context, due):
            bar(context, accused)
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


def bar(context: StepContext, owner: Address) -> None:
    """Bars a provider: it gets no work for 90 days. Has its held jobs executed again. This replaces
    a case that no jury can hear.
    """
    until = UnixSeconds(context.at + trusts.STRIKE_SECONDS)
    context.state.providers[owner] = replace(
        context.state.providers[owner], is_frozen=True, barred_until=until
    )
    context.state.faults[owner] = tuple(
        replace(fault, is_case_used=True) for fault in context.state.faults.get(owner) or ()
    )
    held_pay.reexecute_all(context, owner)


def _is_due(context: StepContext, faults: list[Fault]) -> bool:
    """Whether the faults suffice for a case: two on jobs with an exact comparator of different
    clients, or three in all.
    """
    found = [context.state.jobs.get(fault.job_id) for fault in faults if not fault.is_for_three]
    clients = {
        job.submission.order.message.client
        for job in found
        if job and job.submission.order.message.comparator is Comparator.EXACT
    }
    return len(clients) > 1 or len(faults) >= FAULTS_FOR_CASE


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
        or not isinstance(lease.phase, Revealed)
    ):
        return UnixSeconds(0)
    assignment = lease.assignment.message
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


def known_evidence(context: StepContext, assignments: tuple[Hash32, ...]) -> tuple[Evidence, ...]:
    """Returns the evidence of executions that another account's case names, in that order. Empty
    unless the coordinator has the evidence of all of them.
    """
    found = []
    for digest in assignments:
        lease = context.state.leases.get(digest)
        job = None if lease is None else context.state.jobs.get(lease.job_id)
        if lease is None or job is None or not isinstance(lease.phase, Revealed):
            return ()
        found.append(_shown(job, lease, lease.phase))
    return tuple(found)


def forget_old_cases(context: StepContext) -> None:
    """Deletes all decided cases but the newest `CASES_KEPT`."""
    decided = [case.key for case in context.state.cases.values() if case.is_convicted is not None]
    for key in decided[:-CASES_KEPT]:
        del context.state.cases[key]


def _class_of(context: StepContext, fault: Fault) -> Hash32:
    return context.state.leases[fault.assignment_hash].assignment.message.host_class


def _choose_in_one_class(context: StepContext, faults: list[Fault]) -> list[Fault]:
    for host_class in sorted({_class_of(context, fault) for fault in faults}):
        chosen = _choose([fault for fault in faults if _class_of(context, fault) == host_class])
        if chosen:
            return chosen
    return []


def _choose(faults: list[Fault]) -> list[Fault]:
    """Chooses two faults of different clients, else three of any; the newest ones."""
    pairs = [fault for fault in faults if not fault.is_for_three]
    for newer in reversed(pairs):
        other = next((fault for fault in reversed(pairs) if fault.client != newer.client), None)
        if other is not None:
            return [other, newer]
    return faults[-CASE_EXECUTIONS_MAX:] if len(faults) >= FAULTS_FOR_CASE else []


def _evidence(context: StepContext, fault: Fault) -> Evidence:
    lease = context.state.leases[fault.assignment_hash]
    assert isinstance(lease.phase, Revealed)
    return _shown(context.state.jobs[fault.job_id], lease, lease.phase)


def _shown(job: Job, lease: Lease, phase: Revealed) -> Evidence:
    submission = job.submission
    return Evidence(
        submission.order,
        submission.session,
        lease.index,
        lease.blind,
        lease.assignment,
        phase.commit,
        phase.reveal,
    )
