"""Bars: a provider gets no work for a while (PROTOCOL §5 Faults).

A bar needs no jury, but faults of two clients that have both spent enough here. So one client with
a program that gives random results bars nobody.
"""

from collections.abc import Sequence

from quorate_coordinator.core.accusations import Fault
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.limits import FAULTS_FOR_CASE
from quorate_protocol.rules.trust_record import STRIKE_SECONDS
from quorate_protocol.units import Address, Comparator, Seconds, UnixSeconds
from quorate_protocol.values import replace


def is_backed(context: StepContext, fault: Fault) -> bool:
    """Whether the fault's client has paid enough here for its word to count: so many times what
    the job cost it. Only charges that its vouchers cover count.
    """
    client = context.state.clients.get(fault.client)
    multiple = context.rules.limits.case_spent_multiple
    return client is not None and min(client.charged, client.vouched) >= multiple * fault.price


def is_due(context: StepContext, faults: Sequence[Fault]) -> bool:
    """Whether backed faults suffice for a bar: two on jobs with an exact comparator of different
    clients, or three of at least two clients. Faults older than the evidence of a case do not
    count.
    """
    age = context.rules.limits.case_evidence_age
    young = [fault for fault in faults if context.at - fault.at < age]
    found = [context.state.jobs.get(fault.job_id) for fault in young]
    clients = {
        job.submission.order.message.client
        for job in found
        if job and job.submission.order.message.comparator is Comparator.EXACT
    }
    if len(clients) > 1:
        return True
    return len(young) >= FAULTS_FOR_CASE and len({fault.client for fault in young}) > 1


def bar(context: StepContext, owner: Address) -> None:
    """Bars a provider and has its held jobs executed again. The first bar lasts 7 days, and each
    later one twice as long, at most 90 days. 90 days after the last one all are forgotten.
    """
    provider = context.state.providers[owner]
    is_forgotten = context.at >= provider.last_bar_end + STRIKE_SECONDS
    bars = 0 if is_forgotten else provider.bars
    seconds = Seconds(min(STRIKE_SECONDS, context.rules.limits.bar_first << bars))
    until = UnixSeconds(context.at + seconds)
    context.state.providers[owner] = replace(
        provider, barred_until=until, bars=min(bars + 1, 16), last_bar_end=until
    )
    context.state.faults[owner] = tuple(
        replace(fault, is_used=True) for fault in context.state.faults.get(owner) or ()
    )
    held_pay.reexecute_all(context, owner)
