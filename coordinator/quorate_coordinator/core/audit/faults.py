"""Applies a verdict to providers' records: strikes and accusations (PROTOCOL §5)."""

from collections import Counter
from collections.abc import Sequence

from quorate_coordinator.core.model.accusations import Case, Fault
from quorate_coordinator.core.model.effects import Evidence, OpenCase
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.lease import Lease, Revealed, class_of
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import escrows, held_pay
from quorate_protocol.limits import DAY, JURORS
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.rules.reputation.fold import KILLS_FOR_STRIKE, Trusts
from quorate_protocol.rules.settlement import pay_of
from quorate_protocol.rules.trust_record import STRIKE_SECONDS
from quorate_protocol.units import (
    KILLED,
    Address,
    Amount,
    Comparator,
    Hash32,
    Milliseconds,
    UnixSeconds,
)

FAULTS_KEPT = 64
CASES_KEPT = 256
CLIENTS_FOR_CASE = 2  # whose faults count, before this coordinator accuses
ACCUSE_PERIOD = 30 * DAY  # of the budget with which this coordinator accuses
CASE_SECONDS = 10  # time to open a case before the court finds its evidence too old


def counted(context: StepContext, job: Job, faulted: Sequence[Lease]) -> list[Lease]:
    """The executions whose fault counts against their providers (PROTOCOL 5.119).

    Their client has paid enough fees here, and no other fault over its jobs counts against that
    owner now. So a program that knows machines costs its client more than it harms.
    """
    client = job.order.client
    known, limits = context.state.clients.get(client), context.rules.limits
    if known is None or known.fees_paid < limits.strike_fees:
        return []
    since = context.at - STRIKE_SECONDS
    first = {lease.provider: lease for lease in reversed(faulted)}  # one of each owner
    return [
        lease
        for lease in first.values()
        if not any(
            fault.client == client and fault.at > since
            for fault in context.state.faults.get(lease.provider) or ()
        )
    ]


def judge(context: StepContext, job: Job, faulted: list[Lease], struck: Sequence[Lease]) -> None:
    """Only those of `struck` get a strike; the job's Summary has changed their trust before."""
    for lease in faulted:
        if lease in struck:
            _strike(context, job, lease)
        if not is_killed(lease):
            held_pay.reexecute_after_fault(context, lease.provider, job)
            _accuse_if_due(context, lease.provider)


def doubt(context: StepContext, job: Job, outvoted: list[Lease], counted: Sequence[Lease]) -> None:
    """They gave another result than the group, and two of their own class did not confirm it: no
    fault. Those of `counted` are audited again until they have agreed often enough. The others lose
    no more than their pay: else a new client could have held jobs run again for next to nothing.
    """
    for lease in outvoted:
        text = f"execution {lease.index}: 0x{lease.provider.hex()} is not paid, and at no fault"
        context.note(job.id, "outvoted", text)
        if lease in counted:
            _keep(context, job, lease, is_in_no_case=True)
            held_pay.reexecute_after_fault(context, lease.provider, job)


def _keep(context: StepContext, job: Job, lease: Lease, is_in_no_case: bool) -> None:
    image = image_digest(job.submission.spec.image)
    fault = Fault(lease.assignment_hash, job.id, job.order.client, context.at, is_in_no_case, image)
    before = context.state.faults.get(lease.provider) or ()
    context.state.faults[lease.provider] = (*before, fault)[-FAULTS_KEPT:]


def _strike(context: StepContext, job: Job, lease: Lease) -> None:
    owner, has_died = lease.provider, is_killed(lease)
    _keep(context, job, lease, is_in_no_case=has_died)
    text = f"execution {lease.index}: 0x{owner.hex()} is outside the accepted group, a strike"
    if not has_died:
        context.note(job.id, "faulted", f"{text} for 90 days")
    elif not (context.state.trust.get(owner) or Trusts()).kills:
        text = f"0x{owner.hex()}: {KILLS_FOR_STRIKE} outvoted time-outs or memory kills, a strike"
        context.note(job.id, "faulted", f"{text} for 90 days")


def is_killed(lease: Lease) -> bool:
    return isinstance(lease.phase, Revealed) and lease.phase.reveal.exit_status in KILLED


def _accuse_if_due(context: StepContext, owner: Address) -> None:
    """Accuses a provider of its newest fault that the court can hear and the operator's budget
    covers, once faults of two clients count. All its held pay is executed again.

    An older fault counts too, though the court hears it no longer: it stands for its client until
    another one can.
    """
    counting = [
        fault
        for fault in context.state.faults.get(owner) or ()
        if context.at - fault.at < STRIKE_SECONDS and not fault.is_in_no_case
    ]
    if len({fault.client for fault in counting}) < CLIENTS_FOR_CASE:
        return
    for fault in reversed(counting):
        if context.at < heard_until_of(context, fault) and _accuse(context, fault):
            held_pay.reexecute_all(context, owner)
            return


def _accuse(context: StepContext, fault: Fault) -> bool:
    """Returns False if the case's jury costs more than the budget has left."""
    job, lease = context.state.jobs[fault.job_id], context.state.leases[fault.assignment_hash]
    other, limits = contradiction_of(context, job, lease), context.rules.limits
    assert other is not None, "a fault that no other result contradicts is in no case"
    pay = jury_pay(context, job, lease)
    burned = Amount(JURORS * (pay + limits.jury_gas_fee))
    spent = sum(
        case.burned
        for case in context.state.cases.values()
        if context.at < case.opened_at + ACCUSE_PERIOD
    )
    if spent + burned > context.rules.accuse_budget:
        return False
    evidence = evidence_of(context, job, lease, other)
    execution = fault.assignment_hash
    key = f"case-{execution.hex()}-{context.at}"
    context.state.cases[execution] = Case(
        execution=execution,
        accused=lease.provider,
        job_id=job.id,
        evidence=evidence,
        key=key,
        burned=burned,
        opened_at=context.at,
    )
    context.emit(OpenCase(key, evidence, pay))
    context.note(job.id, "case", f"a case is opened against 0x{lease.provider.hex()}")
    return True


def jury_pay(context: StepContext, job: Job, lease: Lease) -> Amount:
    assignment, order = lease.assignment.message, job.order
    whole = Milliseconds(assignment.max_duration * 1000)
    return max(context.rules.limits.jury_pay_min, pay_of(order, assignment, whole))


def has_faulted_since(context: StepContext, owner: Address, job: Job) -> bool:
    assert job.held_verdict is not None
    since = job.held_verdict.message.time
    return any(fault.at >= since for fault in context.state.faults.get(owner) or ())


def heard_until_of(context: StepContext, fault: Fault) -> UnixSeconds:
    """From then on no case can be over this fault; 0 if none could ever be."""
    job = context.state.jobs.get(fault.job_id)
    if job is None or fault.assignment_hash in context.state.cases:
        return UnixSeconds(0)
    return _heard_until(context, job, context.state.leases[fault.assignment_hash])


def _heard_until(context: StepContext, job: Job, lease: Lease) -> UnixSeconds:
    limits, order = context.rules.limits, job.order
    assignment = lease.assignment.message
    if (
        order.comparator is not Comparator.EXACT
        or not order.caseable
        or assignment.max_duration > limits.case_duration_max
        or contradiction_of(context, job, lease) is None
    ):
        return UnixSeconds(0)
    ends = assignment.accept_by + assignment.max_duration
    return UnixSeconds(ends + limits.case_evidence_age - CASE_SECONDS)


def heard_until(context: StepContext, job: Job) -> UnixSeconds:
    """From then on no new case can name an execution of the job. Anybody may accuse over results
    that differ, whether a fault counts or not.
    """
    found = [_heard_until(context, job, context.state.leases[digest]) for digest in job.leases]
    return max(found, default=UnixSeconds(0))


def in_court(context: StepContext) -> frozenset[Hash32]:
    return frozenset(
        case.job_id
        for case in context.state.cases.values()
        if case.is_convicted is None and case.job_id is not None
    )


def known_evidence(
    context: StepContext, execution: Hash32, contradiction: Hash32
) -> tuple[Hash32 | None, Evidence | None]:
    """The job of an execution that another account's case names, and both executions if known."""
    lease = context.state.leases.get(execution)
    job = None if lease is None else context.state.jobs.get(lease.job_id)
    if lease is None or job is None:
        return None, None
    other = context.state.leases.get(contradiction)
    if other is None or not all(isinstance(item.phase, Revealed) for item in (lease, other)):
        return job.id, None
    return job.id, evidence_of(context, job, lease, other)


def forget_old_cases(context: StepContext) -> None:
    """All decided ones but the newest `CASES_KEPT` and those that count for the budget."""
    decided = [
        case.execution
        for case in context.state.cases.values()
        if case.is_convicted is not None
        and not (case.burned and context.at < case.opened_at + ACCUSE_PERIOD)
    ]
    for execution in decided[:-CASES_KEPT]:
        del context.state.cases[execution]


def contradiction_of(context: StepContext, job: Job, lease: Lease) -> Lease | None:
    """With the result that most others found; None if there is none that a court hears."""
    if not isinstance(lease.phase, Revealed) or is_killed(lease):
        return None
    others = [
        other
        for other in (context.state.leases[digest] for digest in job.leases)
        if isinstance(other.phase, Revealed)
        and not is_killed(other)
        and other.provider != lease.provider
        and class_of(other) == class_of(lease)
    ]
    counts = Counter(_result(other) for other in others if _result(other) != _result(lease))
    if not counts:
        return None
    likely = counts.most_common(1)[0][0]
    return next(other for other in others if _result(other) == likely)


def _result(lease: Lease) -> Hash32:
    assert isinstance(lease.phase, Revealed)
    return lease.phase.result


def evidence_of(context: StepContext, job: Job, lease: Lease, other: Lease) -> Evidence:
    submission = job.submission
    run, against = escrows.shown(context, lease), escrows.shown(context, other)
    return Evidence(submission.order, submission.session, run, against)
