"""Signs the lines of the coordinator's public log, and applies them to the table of trust.

The table changes only here, by the function with which anybody folds the log (`rules.reputation`),
so nobody can compute other numbers from the log.
"""

from collections.abc import Sequence

from quorate_coordinator.core.audit.trust import trust_class_of
from quorate_coordinator.core.matching import offers, work_windows
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import AppendSummary
from quorate_coordinator.core.model.entities import Job, Provider
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.market_index import slot_offer
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.messages.signed import ExecutionSummary, Summary, Verdict
from quorate_protocol.rules.reputation import fold
from quorate_protocol.units import (
    KILLED,
    ZERO_HASH,
    Amount,
    DeclineReason,
    ExecutionEnd,
    Hash32,
    Milliseconds,
    Outcome,
    Role,
    Seconds,
)
from quorate_protocol.units import Sequence as Seq
from quorate_protocol.values import replace


def count(context: StepContext, job: Job, verdict: Verdict, ended: list[Lease]) -> list[Lease]:
    """Changes the windows of a decided job's owners and of its client. Returns the executions for
    the public log. Without an accepted and charged result these are only the revealed ones: an
    order that costs nothing must say nothing of those who got it.
    """
    if verdict.outcome is not Outcome.ACCEPTED or not job.is_paid_for:
        return [lease for lease in ended if isinstance(lease.phase, leases.Revealed)]
    for lease in ended:
        if isinstance(lease.phase, leases.Revealed | leases.Silent):
            work_windows.widen(context, lease)
            work_windows.widen_client(context, job.order.client)
        elif (
            isinstance(lease.phase, leases.Lapsed)
            and not lease.phase.is_excused
            and not _is_pardoned(context, lease)
        ):
            work_windows.halve(context, lease)
    return ended


def was_promised(provider: Provider, job: Job, lease: Lease) -> bool:
    offer, assignment = provider.offer, lease.assignment.message
    slot = slot_offer(offer, assignment.pool) if offer is not None else None
    if offer is None or slot is None or assignment.price_per_hour < slot.price:
        return False
    return offers.fits(offer, slot, job.submission.spec)


def append(
    context: StepContext, job: Job, verdict: Verdict, counted: Sequence[Lease], is_again: bool
) -> None:
    """`counted` executions were compared by an audit. `is_again`: the job had a verdict before, so
    only its later executions and its primary are in the line.
    """
    first = job.batches[0].members[0]
    ran = [context.state.leases[digest] for digest in job.leases]
    new = [lease for lease in ran if not is_again or lease.is_drawn]
    shown = count(context, job, verdict, new)
    if is_again:
        shown = [context.state.leases[first], *shown]
    hashes = {lease.assignment_hash for lease in counted}
    found = [
        _execution(context, lease, verdict, lease.assignment_hash in hashes) for lease in shown
    ]
    line = replace(
        line_of(context, job, [item for item in found if item]),
        label=verdict.label,
        outcome=verdict.outcome,
        is_again=is_again,
        evidence_hash=verdict.evidence_hash,
        receipt=Hash32(cid_parts(job.receipt_cid)[1]) if job.receipt_cid else ZERO_HASH,
        time=verdict.time,
    )
    publish(context, line)


def line_of(context: StepContext, job: Job, executions: list[ExecutionSummary]) -> Summary:
    """The log's next line, for a job without a verdict."""
    log = context.state.own.log
    return Summary(
        coordinator=context.rules.coordinator,
        seq=Seq(log.count),
        previous_root=log.root(),
        job_hash=fold.job_hash(job.id),
        trust_class=trust_class_of(job),
        pool=job.pool.id(),
        label=job.ack.message.rule,
        outcome=Outcome.ACCEPTED,
        is_again=False,
        executions=tuple(executions[-fold.EXECUTIONS_MAX :]),
        evidence_hash=ZERO_HASH,
        receipt=ZERO_HASH,
        time=context.at,
    )


def publish(context: StepContext, message: Summary) -> None:
    state = context.state
    line = context.seal(message)
    context.change_own(log=state.own.log.append(context.digest(message)))
    for owner, trusts in fold.after_summary(state.trust, message).items():
        state.trust[owner] = trusts
    context.emit(AppendSummary(f"summary-{message.seq}", line))


def _execution(
    context: StepContext, lease: Lease, verdict: Verdict, is_counted: bool
) -> ExecutionSummary | None:
    end = _end_of(lease, verdict)
    if end is None or _is_pardoned(context, lease) or _is_unoffered(context, lease):
        return None
    phase, usage, quoted, took = lease.phase, 0, 0, 0
    if isinstance(phase, leases.Revealed | leases.Silent):
        accept = context.state.accepts[lease.assignment_hash].message
        usage = phase.commit.message.usage_ms
        quoted = (
            accept.quoted_fetch_seconds + accept.quoted_run_seconds + accept.quoted_store_seconds
        )
        took = max(0, phase.committed_at - accept.time)
    return ExecutionSummary(
        provider=lease.provider,
        role=Role.AUDITOR if lease.is_drawn else Role.PRIMARY,
        end=end,
        is_counted=is_counted,
        pay=Amount(context.paid.get(lease.assignment_hash, 0)),
        usage_ms=Milliseconds(usage),
        quoted_seconds=Seconds(quoted),
        took_seconds=Seconds(took),
    )


def _is_pardoned(context: StepContext, lease: Lease) -> bool:
    """It declined because this coordinator's guarantee was too small. Or it got no input from a
    source, or no secrets, and these are the client's own: it serves whom it likes.
    """
    said = context.state.declines.get(lease.assignment_hash)
    reason = None if said is None else said.decline.message.reason
    if reason is DeclineReason.INPUT_UNAVAILABLE:
        spec = context.state.jobs[lease.job_id].submission.spec
        return spec.has_sources() or spec.is_sealed
    return reason is DeclineReason.UNSECURED


def _is_unoffered(context: StepContext, lease: Lease) -> bool:
    """A draw looks at stake alone, and the client names the price. A fast job's draw does not wait
    until a busy provider has room.
    """
    provider, job = context.state.providers[lease.provider], context.state.jobs[lease.job_id]
    if not isinstance(lease.phase, leases.Declined):
        return False
    said = context.state.declines.get(lease.assignment_hash)
    is_busy = said is not None and said.decline.message.reason is DeclineReason.BUSY
    if is_busy and job.is_fast and lease.batch == 0:
        return True
    return not was_promised(provider, job, lease)


def _end_of(lease: Lease, verdict: Verdict) -> ExecutionEnd | None:
    """None if the log does not count it. That is so while it runs, after its client stopped it, if
    its provider starts later, and if nobody sent its Assignment to a live provider.
    """
    match lease.phase:
        case leases.Revealed(_, reveal):
            if lease.assignment_hash not in (*verdict.group, *verdict.faulted):
                return ExecutionEnd.UNDECIDED
            if lease.assignment_hash in verdict.group:
                return ExecutionEnd.AGREED
            return ExecutionEnd.KILLED if reveal.exit_status in KILLED else ExecutionEnd.FAULTED
        case leases.Silent():
            return ExecutionEnd.UNREVEALED
        case leases.Lapsed(is_excused=False, has_given_up=has_given_up):
            return ExecutionEnd.GAVE_UP if has_given_up else ExecutionEnd.LAPSED
        case leases.Declined(start_by) if not start_by:
            return ExecutionEnd.DECLINED
        case _:
            return None
