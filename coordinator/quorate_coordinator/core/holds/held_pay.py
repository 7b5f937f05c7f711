"""Held pay: how a provisional job becomes final, by age or by re-execution (PROTOCOL §5 Holding,
Faults).

At the end of the hold, a fresh draw decides at the job's own rate whether it is executed once
more. After a fault of its provider, the provider's held jobs are executed again, those of the same
client first. The fund pays for a re-execution. If it finds another result, the provider loses the
held pay, which pays for the re-execution. If a job cannot be executed again, the held pay goes
back to the client, and no stake is at risk.
"""

from collections.abc import Sequence

from quorate_coordinator.core.entities import AwaitingRound, Decided, Job
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.money import ledger
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.crypto.merkle import credit_entry
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.rules.settlement import Credit
from quorate_protocol.units import Address, Amount
from quorate_protocol.values import replace

OTHERS_MAX = 20  # held jobs of other clients that are re-executed after a fault


def at_limit(context: StepContext, job: Job) -> None:
    """Ends a hold: a fresh draw decides whether the job is audited after all."""
    _look_again(context, job, wanted=0, since=_closed_at(job) + context.rules.limits.max_hold)


def at_exit(context: StepContext, job: Job) -> None:
    """Ends a hold early, because the provider exits: a fresh draw decides before it is gone."""
    _look_again(context, job, wanted=0, since=context.state.own.block_time)


def window_passed(context: StepContext, job: Job) -> None:
    """Makes a verdict final, because its provider has served W further jobs that were as likely to
    be audited.
    """
    assert isinstance(job.phase, Decided) and not job.phase.is_final, (
        "only a provisional job is held"
    )
    del context.state.held[job.id]
    context.note(job.id, "confirmed", "its provider has served enough further jobs")
    _finish(context, context.put(job, phase=replace(job.phase, is_final=True)))


def reexamine(context: StepContext, owner: Address, faulty: Job) -> None:
    """Has held jobs of `owner` executed again after a fault: all of the same client, and some of
    other clients.

    The beacon chooses those of other clients, by the round that drew the faulty job's last batch.
    Everyone can check that choice, and no party could influence it.
    """
    held = held_by(context, owner)
    client, beacon = faulty.submission.order.message.client, faulty.beacons[-1].randomness
    same = [job for job in held if job.submission.order.message.client == client]
    others = sorted(
        (job for job in held if job not in same), key=lambda job: hash_tuple(beacon, "held", job.id)
    )
    for job in (*same, *others[:OTHERS_MAX]):
        _look_again(context, job, wanted=1, since=_closed_at(faulty))


def reexamine_all(context: StepContext, owner: Address) -> None:
    """Has all held jobs of a provider executed again, because a case is opened against it or it is
    barred.
    """
    faulty = [
        context.state.jobs.get(fault.job_id) for fault in context.state.faults.get(owner) or ()
    ]
    since = max((_closed_at(job) for job in faulty if job is not None), default=0)
    for job in held_by(context, owner):
        _look_again(context, job, wanted=1, since=since)


def held_by(context: StepContext, owner: Address) -> list[Job]:
    """The jobs whose pay is held for one provider."""
    return [
        context.state.jobs[job_id]
        for job_id, hold in context.state.held.items()
        if hold.owner == owner
    ]


def _closed_at(job: Job) -> int:
    return job.batches[-1].commit_set.message.closed_at


def _look_again(context: StepContext, job: Job, wanted: int, since: int) -> None:
    """Waits for a round to draw a held job again. The round follows from a time that others know,
    within what the job's receipt can show, so nobody can choose it (I9).
    """
    assert isinstance(job.phase, Decided) and not job.phase.is_final, (
        "only a provisional job is looked at again"
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
        "its provider was faulted elsewhere"
        if wanted
        else "the hold is over: the beacon decides on an audit",
    )


def not_drawn(context: StepContext, job: Job) -> Job:
    """Makes a held verdict final, because the draw wants no re-execution."""
    assert job.held_verdict is not None
    return _finish(context, context.put(job, phase=Decided(job.held_verdict, True, context.at)))


def confirmed_or_caught(
    context: StepContext,
    job: Job,
    verdict: Envelope[Verdict],
    group: Sequence[Lease],
    faulted: Sequence[Lease],
) -> Job:
    """Applies a re-execution. If it agreed, the fund pays for it. If not, the primary loses its
    held pay, which pays for it.
    """
    job = context.put(job, phase=Decided(verdict, True, context.at))
    primary = _primary(context, job)
    helpers = [lease for lease in group if lease.assignment_hash != primary.assignment_hash]
    if any(lease.assignment_hash == primary.assignment_hash for lease in faulted):
        job, helpers = _forfeit(context, job, primary, helpers)
    ledger.pay_from_fund(context, job, helpers)
    return _finish(context, job)


def gone(context: StepContext, job: Job, verdict: Envelope[Verdict]) -> Job:
    """Returns the held pay to the client, because the job could not be decided again."""
    job = context.put(job, phase=Decided(verdict, True, context.at))
    held = _take_back(context, job, _primary(context, job))
    client = context.state.clients[job.submission.order.message.client]
    context.state.clients[client.account] = replace(
        client, refund_held=Amount(client.refund_held + held)
    )
    job = context.put(job, split=replace(job.split, credits=(), refund=held))
    return _finish(context, job)


def _primary(context: StepContext, job: Job) -> Lease:
    return context.state.leases[job.batches[0].members[0]]


def _finish(context: StepContext, job: Job) -> Job:
    context.set_live(job, False)
    return ledger.release(context, job)


def _take_back(context: StepContext, job: Job, primary: Lease) -> Amount:
    """Takes the primary's held credit away, and returns its amount. The log of credits only grows,
    so a later entry of zero replaces the first one.
    """
    amount = Amount(
        sum(
            credit.amount
            for credit in job.split.credits
            if credit.assignment_hash == primary.assignment_hash
        )
    )
    provider = context.state.providers[primary.provider]
    credits = provider.credits.append(
        credit_entry(primary.assignment.message.assignment_id, Amount(0))
    )
    context.state.providers[provider.owner] = replace(
        provider, held=Amount(provider.held - amount), credits=credits
    )
    context.state.statements_due[provider.owner] = True
    return amount


def _forfeit(
    context: StepContext, job: Job, primary: Lease, helpers: Sequence[Lease]
) -> tuple[Job, list[Lease]]:
    """Pays the helpers, in order, from the pay that the primary loses. What is left goes to the
    fund. Returns the helpers that the pay did not reach.
    """
    left = _take_back(context, job, primary)
    credits: list[Credit] = []
    unpaid: list[Lease] = []
    for lease in helpers:
        pay = ledger.pay_of(context, job, lease)
        if pay > left:
            unpaid.append(lease)
            continue
        left = Amount(left - pay)
        credits.append(Credit(lease.assignment_hash, pay))
        ledger.credit(context, lease, pay)
    own = context.state.own
    context.change_own(fund_held=Amount(own.fund_held + left))
    split = replace(job.split, credits=tuple(credits), fund=Amount(job.split.fund + left))
    return context.put(job, split=split), unpaid
