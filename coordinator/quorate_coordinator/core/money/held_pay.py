"""Held pay: the pay of a job whose verdict is provisional (PROTOCOL §5 Holding, Faults).

At the end of the hold, the beacon draws once more, at the job's own audit rate, whether the job is
executed again. After a fault, the provider's held jobs are executed again, those of the same client
first. The audit fund pays for a re-execution that gives the same result. If it gives another, the
held pay goes to the auditors. If nobody can execute the job again, the held pay becomes final,
because the client has read the output; after a fault it goes back to the client. No stake is at
risk there.
"""

from collections.abc import Sequence

from quorate_coordinator.core.model.entities import AwaitingRound, Decided, Job
from quorate_coordinator.core.model.lease import Lease, Revealed, result_of
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import ledger, payees
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.units import Address, Amount
from quorate_protocol.values import replace

OTHERS_MAX = 20  # held jobs of other clients that are re-executed after a fault


def draw_at_hold_end(context: StepContext, job: Job) -> None:
    _await_redraw(context, job, wanted=0, since=_closed_at(job) + context.rules.limits.max_hold)


def draw_at_provider_exit(context: StepContext, job: Job) -> None:
    _await_redraw(context, job, wanted=0, since=context.state.own.block_time)


def finish_after_window(context: StepContext, job: Job) -> None:
    """Its provider has served enough further jobs, each as likely to be audited."""
    assert isinstance(job.phase, Decided) and not job.phase.is_final, (
        "only a provisional job is held"
    )
    del context.state.held[job.id]
    context.note(
        job.id, "confirmed", "its provider has served enough further jobs: the verdict is final"
    )
    _finish_and_release(context, context.put(job, phase=replace(job.phase, is_final=True)))


def reexecute_after_fault(context: StepContext, owner: Address, faulty: Job) -> None:
    """All held jobs of the faulty job's client, and at most `OTHERS_MAX` of other clients.

    The randomness of the round that drew the faulty job's last batch chooses among the others.
    Everyone can check that choice, and nobody could influence it.
    """
    held = held_jobs_of(context, owner)
    client, beacon = faulty.order.client, faulty.beacons[-1].randomness
    same = [job for job in held if job.order.client == client]
    others = sorted(
        (job for job in held if job not in same), key=lambda job: hash_tuple(beacon, "held", job.id)
    )
    for job in (*same, *others[:OTHERS_MAX]):
        _await_redraw(context, job, wanted=1, since=_closed_at(faulty))


def reexecute_all(context: StepContext, owner: Address) -> None:
    faulty = [
        context.state.jobs.get(fault.job_id) for fault in context.state.faults.get(owner) or ()
    ]
    since = max((_closed_at(job) for job in faulty if job is not None), default=0)
    for job in held_jobs_of(context, owner):
        _await_redraw(context, job, wanted=1, since=since)


def held_jobs_of(context: StepContext, owner: Address) -> list[Job]:
    return [
        context.state.jobs[job_id]
        for job_id, hold in context.state.held.items()
        if hold.owner == owner
    ]


def _closed_at(job: Job) -> int:
    return job.batches[-1].commit_set.message.closed_at


def _await_redraw(context: StepContext, job: Job, wanted: int, since: int) -> None:
    """A beacon round draws the re-execution.

    `wanted` auditors are drawn; 0 means that the draw decides whether there is one. The round
    follows from `since`, a time that others know, and lies within what the receipt can show. So
    nobody can choose the round (I9).
    """
    assert isinstance(job.phase, Decided) and not job.phase.is_final, (
        "only a provisional job is drawn again"
    )
    timing, closed_at = context.rules.timing, _closed_at(job)
    later = max(
        timing.later_round(closed_at),
        min(timing.later_round(since), timing.later_round(closed_at + timing.max_hold)),
    )
    del context.state.held[job.id]
    context.set_live(job, True)
    phase = AwaitingRound(len(job.batches), wanted, later, ())
    context.put(job, phase=phase, held_verdict=job.phase.verdict)
    context.note(
        job.id,
        "re-examined",
        "its provider had a fault in another job: this job is executed again"
        if wanted
        else f"its hold is over: beacon round {later} decides whether it is audited",
    )


def finish_without_reexecution(context: StepContext, job: Job) -> Job:
    assert job.held_verdict is not None
    return _finish_and_release(
        context, context.put(job, phase=Decided(job.held_verdict, True, context.at))
    )


def apply_reexecution(
    context: StepContext, job: Job, verdict: Envelope[Verdict], group: Sequence[Lease]
) -> Job:
    """If the primary is in the accepted group, the audit fund pays the auditors. If not, they are
    paid from the held pay that it loses. Repeats are paid like auditors.
    """
    job = context.put(job, phase=Decided(verdict, True, context.at))
    primary = _primary(context, job)
    auditors = [lease for lease in group if lease.assignment_hash != primary.assignment_hash]
    result, again = result_of(group[0]), (context.state.leases[name] for name in job.repeats)
    paid = {lease.provider for lease in group}
    auditors += [x for x in again if x.provider in paid and result_of(x) == result]
    if primary not in group:
        job, auditors = _pay_from_forfeit(context, job, primary, auditors)
    owed = [Credit(lease.assignment_hash, ledger.pay_of(context, job, lease)) for lease in auditors]
    ledger.pay_from_fund(context, job, owed)
    return _finish_and_release(context, job)


def keep_held_pay(
    context: StepContext, job: Job, verdict: Envelope[Verdict], auditors: Sequence[Lease]
) -> Job:
    """The client has read the output. The audit fund pays the auditors that revealed."""
    job = context.put(job, phase=Decided(verdict, True, context.at))
    _pay_revealed(context, job, auditors)
    return _finish_and_release(context, job)


def _pay_revealed(context: StepContext, job: Job, members: Sequence[Lease]) -> None:
    owed = [
        Credit(lease.assignment_hash, ledger.pay_of(context, job, lease))
        for lease in members
        if isinstance(lease.phase, Revealed)
    ]
    ledger.pay_from_fund(context, job, owed)


def refund_held_pay(
    context: StepContext, job: Job, verdict: Envelope[Verdict], auditors: Sequence[Lease]
) -> Job:
    """Nobody vouches for the result. The audit fund pays those of `auditors` that revealed."""
    job = context.put(job, phase=Decided(verdict, True, context.at))
    held = _cancel_held_credit(context, job, _primary(context, job))
    job = context.put(job, split=replace(job.split, credits=(), refund=held))
    context.set_live(job, False)
    ledger.refund(context, job, held)
    job = context.state.jobs[job.id]
    _pay_revealed(context, job, auditors)
    return _finish_and_release(context, job)


def _primary(context: StepContext, job: Job) -> Lease:
    return context.state.leases[job.batches[0].members[0]]


def _finish_and_release(context: StepContext, job: Job) -> Job:
    context.set_live(job, False)
    return ledger.release(context, job)


def _cancel_held_credit(context: StepContext, job: Job, primary: Lease) -> Amount:
    amount = Amount(
        sum(
            credit.amount
            for credit in job.split.credits
            if credit.assignment_hash == primary.assignment_hash
        )
    )
    payees.hold(context, primary.provider, -amount)
    return amount


def _pay_from_forfeit(
    context: StepContext, job: Job, primary: Lease, auditors: Sequence[Lease]
) -> tuple[Job, list[Lease]]:
    """In order; the rest goes to the audit fund. Returns whom it was not enough for."""
    left = _cancel_held_credit(context, job, primary)
    credits: list[Credit] = []
    unpaid: list[Lease] = []
    for lease in auditors:
        pay = ledger.pay_of(context, job, lease)
        if pay > left:
            unpaid.append(lease)
            continue
        left = Amount(left - pay)
        credits.append(Credit(lease.assignment_hash, pay))
        ledger.hold(context, lease, pay)
    own = context.state.own
    context.change_own(fund_held=Amount(own.fund_held + left))
    split = replace(job.split, credits=tuple(credits), fund=Amount(job.split.fund + left))
    return context.put(job, split=split), unpaid
