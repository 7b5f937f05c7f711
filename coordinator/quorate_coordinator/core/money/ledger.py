"""The ledger: what verdicts charge, and what clients' vouchers cover (PROTOCOL §6, I1).

A voucher covers a charge when its cumulative amount reaches it. Charged always equals final + held
+ fee + fund, which `check` asserts. A refund lowers what is charged.
"""

from collections import Counter
from collections.abc import Sequence

from quorate_coordinator.core.model.entities import Client, Decided, Job
from quorate_coordinator.core.model.events import VoucherReceived
from quorate_coordinator.core.model.lease import (
    Closed,
    Lease,
    Revealed,
    Silent,
    class_of,
    result_of,
)
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import escrows, payees
from quorate_protocol.limits import DAY
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Session, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import settlement, tabs
from quorate_protocol.rules.agreement import EXACT, Agreement, within
from quorate_protocol.rules.settlement import Credit, Ran
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import Address, Amount, UnixSeconds, usd
from quorate_protocol.values import replace


def pay_of(context: StepContext, job: Job, lease: Lease) -> Amount:
    """Everyone with the receipt computes the same amount (I10)."""
    phase, assignment = lease.phase, lease.assignment.message
    assert isinstance(phase, Closed | Revealed | Silent)
    batch = next(batch for batch in job.batches if lease.assignment_hash in batch.members)
    by = batch.stored_at[batch.members.index(lease.assignment_hash)]
    return settlement.pay_of(
        job.order,
        assignment,
        settlement.payable_usage(
            phase.commit.message.usage_ms, assignment, by, context.rules.limits.accept_within
        ),
    )


def ran(context: StepContext, job: Job, members: list[Lease]) -> list[Ran]:
    names = [digest for batch in job.batches for digest in batch.members]
    again = {
        name: names[place]
        for batch in job.batches
        if batch.is_repeat
        for name, place in zip(batch.members, batch.commit_set.message.slots, strict=True)
    }
    return [
        Ran(
            lease.assignment_hash,
            pay_of(context, job, lease),
            result_of(lease),
            again.get(lease.assignment_hash),
            class_of(lease),
        )
        for lease in members
    ]


def agreement_of(context: StepContext, job: Job) -> Agreement:
    """What says which of its results agree."""
    if job.is_exact:
        return EXACT
    results = {name: result_of(context.state.leases[name]) for name in job.leases}
    known = ((results[it.one], results[it.other], it.ppb) for it in job.comparisons)
    return within(job.submission.spec.compare.tolerance_ppm, known)


def settle(context: StepContext, job: Job, verdict: Verdict, members: list[Lease]) -> Job:
    """What the client pays is held for now; the audit fund pays at once."""
    order = job.order
    bill = settlement.bill(
        order,
        job.ack.message,
        verdict,
        ran(context, job, members),
        is_audit_billed(job),
        agreement=agreement_of(context, job),
    )
    split = bill.split
    context.set_live(job, False)
    if job.is_escrowed:
        return _settle_escrowed(context, job, verdict, bill)
    assert split.charged <= job.reserved, "I4: a job costs at most what is reserved for it"
    job = release_reservation(context, job)
    client = context.state.clients[order.client]
    charged = Amount(client.charged + split.charged)
    context.state.clients[order.client] = replace(
        client, charged=charged, open_charges=(*client.open_charges, job.id)
    )
    own = context.state.own
    context.change_own(
        fee_held=Amount(own.fee_held + split.fee), fund_held=Amount(own.fund_held + split.fund)
    )
    job = context.put(job, split=split, charged_up_to=charged)
    for item in split.credits:
        hold(context, context.state.leases[item.assignment_hash], item.amount)
    context.note(job.id, "charged", f"{usd(split.charged)} USD, {usd(split.fee)} of it fee")
    pay_from_fund(context, job, bill.by_fund)
    payees.wake(context)
    _cover(context, order.client)
    return context.state.jobs[job.id]


def _settle_escrowed(
    context: StepContext, job: Job, verdict: Verdict, bill: settlement.Bill
) -> Job:
    """The chain does not know repeats, which the audit fund pays here."""
    job = context.put(job, split=bill.split, is_covered=True)
    for item in bill.split.credits:
        context.paid[item.assignment_hash] = item.amount
    owed = [one for one in bill.by_fund if one.assignment_hash in job.repeats]
    pay_from_fund(context, job, owed)
    escrows.show_accepted(context, job, verdict)
    return release(context, job)


def is_audit_billed(job: Job) -> bool:
    order, executions = job.order, len(job.batches[0].members)
    return settlement.is_audit_billed(
        order, job.ack.message.rule, job.witness is not None, executions
    )


def hold(context: StepContext, lease: Lease, amount: Amount) -> None:
    payees.hold(context, lease.provider, amount)
    context.paid[lease.assignment_hash] = amount


def lower_reservation(context: StepContext, job: Job, most: Amount) -> Job:
    if job.reserved <= most:
        return job
    client = context.state.clients[job.order.client]
    context.state.clients[client.account] = replace(
        client, reserved=Amount(client.reserved - job.reserved + most)
    )
    return context.put(job, reserved=most)


def release_reservation(context: StepContext, job: Job) -> Job:
    """A second call changes nothing."""
    if not job.reserved:
        return job
    client = context.state.clients[job.order.client]
    context.state.clients[client.account] = replace(
        client, reserved=Amount(client.reserved - job.reserved)
    )
    return context.put(job, reserved=Amount(0))


def pay_from_fund(context: StepContext, job: Job, owed: Sequence[Credit]) -> None:
    """Pays executions for which no client is charged, as far as the fund's money goes, and as the
    job's client may use it (PROTOCOL 5.99).
    """
    account = job.order.client
    for item in owed:
        own, lease = context.state.own, context.state.leases[item.assignment_hash]
        client = context.state.clients[account]
        # Who was never charged gets nothing from the fund, so that new accounts cannot empty it.
        allowance = context.rules.limits.fund_allowance if client.charged else 0
        left = client.fund_paid + allowance - client.fund_spent
        amount = Amount(min(item.amount, own.fund, left))
        if amount:
            context.change_own(fund=Amount(own.fund - amount))
            spent = Amount(client.fund_spent + amount)
            context.state.clients[account] = replace(client, fund_spent=spent)
            payees.finish(context, lease.provider, amount, is_held=False)
            context.paid[lease.assignment_hash] = amount
        if amount < item.amount:
            missing = usd(item.amount - amount)
            lacks = "audit fund" if amount == own.fund else "client's part of the audit fund"
            context.note(
                job.id, "unpaid", f"execution {lease.index}: the {lacks} lacks {missing} USD"
            )


def on_voucher(context: StepContext, event: VoucherReceived) -> None:
    """It covers charges in the order in which they were made."""
    message = event.voucher.message
    client = context.state.clients.get(message.payer)
    if client is None:
        raise Refused(Code.UNKNOWN, f"client 0x{message.payer.hex()}")
    session = next(
        (item for item in reversed(client.sessions) if item.message.session_key == event.key), None
    )
    if session is None or message.payee != context.rules.coordinator:
        raise Refused(
            Code.WRONG_SIGNER,
            "voucher: not signed by a session key known here, or for another coordinator",
        )
    if message.cumulative > settlement.signable(session.message):
        raise Refused(
            Code.INSUFFICIENT_FUNDS,
            "voucher: above the session's limit of "
            f"{usd(settlement.signable(session.message))} USD",
        )
    if client.voucher == event.voucher:
        _prolong(context, client, session)
        return
    signed = client.voucher.message.cumulative if client.voucher is not None else 0
    if message.cumulative <= signed:
        raise Refused(
            Code.STALE, f"voucher: an earlier voucher already covers {signed}; sign a larger sum"
        )
    _check_session(context, session.message)
    _count(context, replace(client, voucher=event.voucher, voucher_session=session))


def _prolong(context: StepContext, client: Client, session: Envelope[Session]) -> None:
    before = client.voucher_session
    if before is None or session.message.expires > before.message.expires:
        _count(context, replace(client, voucher_session=session, redeem_after=UnixSeconds(0)))


def _check_session(context: StepContext, session: Session) -> None:
    """Raises Refused for a voucher that may not count any more when it is redeemed. The later of
    our clock and the chain's decides, so a wrong clock can only refuse too early.
    """
    limits = context.rules.limits
    margin = min(DAY, limits.client_close // 2)
    if chain_time(context) > tabs.counts_until(session.expires, False, limits) - margin:
        raise Refused(
            Code.EXPIRED,
            f"voucher: its session counts for less than {margin} s; send a new session, then this "
            "again",
        )


def chain_time(context: StepContext) -> UnixSeconds:
    """If our clock is behind, a block has shown a later time."""
    return max(context.at, context.state.own.block_time)


def on_tab(context: StepContext, account: Address, tab: Tab) -> None:
    """Deletes a client that took everything back and never ordered. Otherwise one deposit, passed
    on from account to account, would fill the table.
    """
    client = context.state.clients.get(account) or Client(account)
    _count(context, replace(client, tab=tab))
    if not tab.locked and not client.charged and account not in context.state.nonces:
        del context.state.clients[account]


def _count(context: StepContext, client: Client) -> None:
    """How much of a client's voucher counts, and what it covers. What the chain paid, also to
    others, always counts.
    """
    signed = client.voucher.message.cumulative if client.voucher is not None else 0
    vouched = Amount(max(client.tab.paid, min(signed, client.tab.locked)))
    since = client.unpaid_since or context.at
    client = replace(
        client, vouched=vouched, unpaid_since=since if vouched > client.tab.paid else UnixSeconds(0)
    )
    context.state.clients[client.account] = client
    payees.wake(context)
    _cover(context, client.account)


def refund(context: StepContext, job: Job, amount: Amount) -> None:
    """Lowers what the client is charged. A client that leaves gets it by payroll."""
    client = context.state.clients[job.order.client]
    is_open = job.id in client.open_charges
    later = client.open_charges[client.open_charges.index(job.id) if is_open else 0 :]
    for job_id in later:
        charge = context.state.jobs[job_id]
        context.put(charge, charged_up_to=Amount(charge.charged_up_to - amount))
    charged = Amount(client.charged - amount)
    context.state.clients[client.account] = replace(client, charged=charged)
    _cover(context, client.account)
    if client.tab.closes_at or client.tab.free <= 0:
        return_overpaid(context, client.account)


def orderable(state: State, client: Client) -> Amount:
    """All that is locked, but for a give-back."""
    leaving = state.sending.get(give_back_kind(client.account))
    return Amount(client.tab.locked - (leaving.amount if leaving is not None else 0))


def give_back_kind(client: Address) -> str:
    return f"give-back-{client.hex()}"


def return_overpaid(context: StepContext, account: Address) -> None:
    """A client that leaves is owed what its tab paid beyond its charges. A payroll pays it."""
    client = context.state.clients[account]
    excess = Amount(client.tab.paid - client.charged)
    if excess <= 0 or client.under_way or client.open_charges:
        return
    context.state.clients[account] = replace(client, charged=client.tab.paid)
    payees.finish(context, account, excess, is_held=False)


def _cover(context: StepContext, account: Address) -> None:
    """In the order in which charges were made. Those beyond the vouchers are paid to the providers
    as far as the client's credit reaches.
    """
    client = context.state.clients[account]
    covered = 0
    for job_id in client.open_charges:
        job = context.state.jobs[job_id]
        if job.charged_up_to > client.vouched:
            break
        release(context, context.put(job, is_covered=True))
        covered += 1
    client = context.state.clients[account]
    client = replace(client, open_charges=client.open_charges[covered:])
    context.state.clients[account] = client
    for job_id in client.open_charges:
        job = context.state.jobs[job_id]
        if not _is_lent(client, job):
            break
        release(context, job)


def _is_lent(client: Client, job: Job) -> bool:
    """Inside what the coordinator lends its client (PROTOCOL 4.77)."""
    return job.charged_up_to <= client.vouched + client.fees_paid


def release(context: StepContext, job: Job) -> Job:
    """Makes held pay final once the verdict is final and a voucher or the client's credit covers
    the charge; with a voucher the fee too. A second call changes nothing.
    """
    if job.is_released or not isinstance(job.phase, Decided) or not job.phase.is_final:
        return job
    client = context.state.clients[job.order.client]
    if not job.is_pay_final and (job.is_covered or _is_lent(client, job)):
        job = context.put(job, is_pay_final=True)
        for item in () if job.is_escrowed else job.split.credits:
            owner = context.state.leases[item.assignment_hash].provider
            payees.finish(context, owner, item.amount, is_held=True)
    if not job.is_covered:
        return job
    job = context.put(job, is_released=True)
    context.state.finished[job.id] = context.at
    if job.is_escrowed:
        return job
    own, split = context.state.own, job.split
    client = context.state.clients[job.order.client]
    paid = Amount(client.fund_paid + split.fund)
    fees = Amount(client.fees_paid + split.fee)
    context.state.clients[client.account] = replace(client, fund_paid=paid, fees_paid=fees)
    context.change_own(
        fee=Amount(own.fee + split.fee),
        fee_held=Amount(own.fee_held - split.fee),
        fund=Amount(own.fund + split.fund),
        fund_held=Amount(own.fund_held - split.fund),
    )
    context.note(job.id, "final", "the client's voucher covers it: the pay is final")
    return job


def check(context: StepContext) -> None:
    """I1: charged = final + held + fees + fund. Linear in accounts, so only for tests."""
    state, own = context.state, context.state.own
    charged = sum(client.charged for client in state.clients.values())
    credited = sum(payee.final + payee.held for payee in state.payees.values())
    kept = own.fee + own.fee_held + own.fund + own.fund_held
    parts = sum(client.fund_paid - client.fund_spent for client in state.clients.values())
    assert own.fund >= parts, f"5.99: clients' parts are {parts}, and the fund has {own.fund}"
    assert charged == credited + kept, f"I1: charged {charged}, credited {credited}, kept {kept}"
    assert all(payee.held >= 0 for payee in state.payees.values()), "I1: held pay is below zero"
    reserved: Counter[Address] = Counter()
    for job in state.jobs.values():
        reserved[job.order.client] += job.reserved
    under_way = Counter(state.jobs[job_id].order.client for job_id in state.live)
    for client in state.clients.values():
        account = client.account
        assert client.reserved == reserved[account] and client.vouched <= client.tab.locked, (
            "I4: a client signed for more than the chain holds"
        )
        assert client.under_way == under_way[account], (
            "a client has as many jobs under way as are live"
        )
