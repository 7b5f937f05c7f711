"""The ledger: what verdicts charge, what vouchers cover, and what statements promise (PROTOCOL §6,
I1).

A voucher covers a charge when its cumulative amount reaches it. A provider's credit is `held` until
its job is final and the client's voucher covers the charge, then `final`. Charged always equals
final + held + fee + fund + refund, which `check` asserts.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.entities import Client, Decided, Job, Provider
from quorate_coordinator.core.events import VoucherReceived
from quorate_coordinator.core.lease import Closed, Lease, Revealed, Silent, result_of
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.crypto.merkle import Log, credit_entry
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Session, Statement, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import settlement
from quorate_protocol.rules.reputation import probation
from quorate_protocol.rules.settlement import Credit, Ran
from quorate_protocol.units import Address, Amount, Hash32, UnixSeconds, usd
from quorate_protocol.units import Sequence as Seq
from quorate_protocol.values import replace

STATEMENTS_PER_TICK_MAX = 512


def pay_of(context: StepContext, job: Job, lease: Lease) -> Amount:
    """Returns what one execution of a closed batch earns. Everyone with the receipt computes the
    same amount (I10).
    """
    phase, assignment = lease.phase, lease.assignment.message
    assert isinstance(phase, Closed | Revealed | Silent)
    closed = next(
        batch.commit_set.message for batch in job.batches if lease.assignment_hash in batch.members
    )
    by = settlement.committed_by(closed, lease.assignment_hash, context.rules.timing)
    return settlement.pay_of(
        job.submission.order.message,
        assignment,
        settlement.payable_usage(phase.commit.message.usage_ms, assignment, by),
    )


def ran(context: StepContext, job: Job, members: list[Lease]) -> list[Ran]:
    """Returns the executions of closed batches as `rules.settlement` needs them."""
    repeat, again = job.repeat_batch, {}
    if repeat is not None:
        drawn = [digest for batch in job.batches for digest in batch.members]
        places = repeat.commit_set.message.slots
        again = {name: drawn[at] for name, at in zip(repeat.members, places, strict=True)}
    return [
        Ran(
            lease.assignment_hash,
            pay_of(context, job, lease),
            result_of(lease),
            again.get(lease.assignment_hash),
        )
        for lease in members
    ]


def settle(context: StepContext, job: Job, verdict: Verdict, members: list[Lease]) -> Job:
    """Charges the client as the verdict says, and credits the providers of `members`, which are
    all executions so far. What the client pays is held for now; the audit fund pays at once.
    """
    order = job.submission.order.message
    bill = settlement.bill(
        order, job.ack.message, verdict, ran(context, job, members), is_audit_billed(job)
    )
    split = bill.split
    assert split.charged <= job.reserved, "I4: a job costs at most what is reserved for it"
    job = release_reservation(context, job)
    context.set_live(job, False)
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
        credit(context, context.state.leases[item.assignment_hash], item.amount)
    context.note(job.id, "charged", f"{usd(split.charged)} USD, {usd(split.fee)} of it fee")
    pay_from_fund(context, job, bill.by_fund)
    _owe_epoch(context, context.state.clients[order.client])
    if charged > client.vouched:
        return job
    return _cover(context, order.client).get(job.id, job)


def is_audit_billed(job: Job) -> bool:
    """Whether the client pays for the first audit instead of paying a premium."""
    order, executions = job.submission.order.message, len(job.batches[0].members)
    return settlement.is_audit_billed(
        order, job.ack.message.rule, job.witness is not None, executions
    )


def credit(context: StepContext, lease: Lease, amount: Amount) -> None:
    """Credits an execution to its provider, as held pay."""
    provider = context.state.providers[lease.provider]
    credits = with_entry(provider, lease, amount)
    context.state.providers[provider.owner] = replace(
        provider, held=Amount(provider.held + amount), credits=credits
    )
    context.state.statements_due[provider.owner] = True
    context.paid[lease.assignment_hash] = amount


def with_entry(provider: Provider, lease: Lease, amount: Amount) -> Log:
    """Returns the provider's log of credits with one more entry."""
    return provider.credits.append(credit_entry(lease.assignment.message.assignment_id, amount))


def lower_reservation(context: StepContext, job: Job, most: Amount) -> Job:
    """Keeps at most `most` of a job's reservation. The client may order with the rest at once."""
    if job.reserved <= most:
        return job
    client = context.state.clients[job.submission.order.message.client]
    context.state.clients[client.account] = replace(
        client, reserved=Amount(client.reserved - job.reserved + most)
    )
    return context.put(job, reserved=most)


def release_reservation(context: StepContext, job: Job) -> Job:
    """Ends the reservation of a client's money for a job. A second call changes nothing."""
    if not job.reserved:
        return job
    client = context.state.clients[job.submission.order.message.client]
    context.state.clients[client.account] = replace(
        client, reserved=Amount(client.reserved - job.reserved)
    )
    return context.put(job, reserved=Amount(0))


def pay_from_fund(context: StepContext, job: Job, owed: Sequence[Credit]) -> None:
    """Pays executions for which no client is charged from the audit fund.

    It pays as far as its money goes, and as the job's client may use it (PROTOCOL 5.99).
    """
    account = job.submission.order.message.client
    for item in owed:
        own, lease = context.state.own, context.state.leases[item.assignment_hash]
        client = context.state.clients[account]
        left = client.fund_paid + context.rules.limits.fund_allowance - client.fund_spent
        amount = Amount(min(item.amount, own.fund, left))
        if amount:
            context.change_own(fund=Amount(own.fund - amount))
            spent = Amount(client.fund_spent + amount)
            context.state.clients[account] = replace(client, fund_spent=spent)
            provider = context.state.providers[lease.provider]
            credits = with_entry(provider, lease, amount)
            context.state.providers[provider.owner] = replace(
                provider, final=Amount(provider.final + amount), credits=credits
            )
            _end_probation_by_pay(context, provider.owner)
            context.change_own(is_dirty=True)
            context.state.statements_due[provider.owner] = True
            context.paid[lease.assignment_hash] = amount
        if amount < item.amount:
            missing = usd(item.amount - amount)
            lacks = "audit fund" if amount == own.fund else "client's part of the audit fund"
            context.note(
                job.id, "unpaid", f"execution {lease.index}: the {lacks} lacks {missing} USD"
            )


def state_credits(context: StepContext) -> None:
    """Sends statements to providers whose credit has changed since the last tick, at most
    `STATEMENTS_PER_TICK_MAX`. The others wait for the next tick.

    No statement is sent for each single credit, because the newest statement replaces all earlier
    ones. Its root covers every credit that the provider ever got.
    """
    for owner in list(islice(context.state.statements_due, STATEMENTS_PER_TICK_MAX)):
        del context.state.statements_due[owner]
        _state(context, context.state.providers[owner])


def _state(context: StepContext, provider: Provider) -> None:
    """Signs and sends one statement."""
    seq = Seq(provider.statement_seq + 1)
    provider = replace(provider, statement_seq=seq)
    context.state.providers[provider.owner] = provider
    epoch, root = Seq(context.state.own.epoch + 1), provider.credits.root()
    statement = Statement(provider.owner, *provider.shown, epoch, seq, root)
    frame = frames.StatementSent(context.seal(statement))
    context.emit(
        Send(
            f"statement-{provider.owner.hex()}-{seq}",
            provider.owner,
            frame,
            UnixSeconds(context.at + 3600),
        )
    )


def end_probation(context: StepContext, owner: Address) -> None:
    """Ends an owner's probation: what it earned is final from the next epoch on (PROTOCOL 5.92)."""
    provider = context.state.providers[owner]
    context.state.providers[owner] = replace(provider, is_on_probation=False)
    if provider.final:
        context.state.statements_due[owner] = True
        context.change_own(is_dirty=True)


def _end_probation_by_pay(context: StepContext, owner: Address) -> None:
    provider = context.state.providers[owner]
    slot_stake = context.rules.limits.slot_stake
    if provider.is_on_probation and probation.is_over(provider.final, slot_stake):
        end_probation(context, owner)


def on_voucher(context: StepContext, event: VoucherReceived) -> None:
    """Applies a client's voucher. It covers charges in the order in which they were made, and
    further jobs may start with what it has beyond them.
    """
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
            Code.OVER_ALLOCATION,
            "voucher: above the session's limit of "
            f"{usd(settlement.signable(session.message))} USD",
        )
    is_repeated = client.voucher == event.voucher
    if is_repeated and message.cumulative <= client.vouched:
        _prolong(context, client, session)
        return
    signed = client.vouched if client.voucher is None else client.voucher.message.cumulative
    if message.cumulative <= signed and not is_repeated:
        raise Refused(
            Code.STALE, f"voucher: an earlier voucher already covers {signed}; sign a larger sum"
        )
    _check_honoured(context, client, session.message, message.cumulative)
    client = replace(
        client, vouched=message.cumulative, voucher=event.voucher, voucher_session=session
    )
    context.state.clients[client.account] = client
    _owe_epoch(context, client)
    _cover(context, client.account)


def _prolong(context: StepContext, client: Client, session: Envelope[Session]) -> None:
    """Stores a longer session for a voucher that the client sends again."""
    before = client.voucher_session
    if before is None or session.message.expires > before.message.expires:
        context.state.clients[client.account] = replace(client, voucher_session=session)
        _owe_epoch(context, client)


def _owe_epoch(context: StepContext, client: Client) -> None:
    """Makes an epoch due if a voucher covers charges that the chain has no voucher for yet."""
    if client.posted < min(client.charged, client.vouched):
        context.change_own(is_dirty=True)


def _check_honoured(
    context: StepContext, client: Client, session: Session, cumulative: Amount
) -> None:
    """Raises Refused for a voucher that the chain may not take any more when its epoch is posted.

    The chain refuses a whole epoch for one voucher that it does not honour, and all credits would
    wait. The later of our clock and the chain's decides, so a wrong clock can only refuse too
    early.
    """
    margin = context.rules.limits.voucher_margin
    now = chain_time(context)
    if now >= session.expires - margin:
        raise Refused(
            Code.EXPIRED,
            (
                f"voucher: its session ends within {margin} s, too soon for an epoch; send a new "
                f"session, then this again"
            ),
        )
    if cumulative > client.escrowed:
        raise Refused(
            Code.OVER_ALLOCATION,
            f"voucher: the chain holds {usd(client.escrowed)} USD for this coordinator after the "
            "release",
        )
    if cumulative > client.reach(now, margin):
        raise Refused(
            Code.OVER_ALLOCATION,
            f"voucher: a release may leave {usd(client.allocation)} USD in "
            f"{max(0, client.release_at - now)} s, before an epoch; announce it again, then send "
            "this voucher again",
        )


def chain_time(context: StepContext) -> UnixSeconds:
    """Returns the time that the chain may have by now. If our clock is behind, a block has shown a
    later time.
    """
    return max(context.at, context.state.own.block_time)


def reconsider(context: StepContext, account: Address) -> None:
    """Computes again how much of a client's voucher counts, after its allocation changed.

    A voucher counts for as long as the chain holds its amount. A release may take the money before
    an epoch brings the voucher to the chain. Then the voucher no longer counts, and pay that it
    covered and that is not final is held again. It counts again once the client has allocated as
    much.
    """
    client = context.state.clients[account]
    if client.voucher is None:
        return
    signed = client.voucher.message.cumulative
    worth = signed if signed <= client.escrowed else Amount(min(client.posted, client.escrowed))
    if worth < client.vouched:
        _uncover(context, client, worth)
    elif worth > client.vouched:
        context.state.clients[account] = client = replace(client, vouched=worth)
        _owe_epoch(context, client)
        _cover(context, account)


def _uncover(context: StepContext, client: Client, worth: Amount) -> None:
    """Marks charges above `worth` as not covered by a voucher any more. Credits that are final stay
    final (`epoch_cap`).

    The cost is linear in jobs, but this happens only when a release overtakes an epoch.
    """
    mine = [
        job
        for job in context.state.jobs.values()
        if job.submission.order.message.client == client.account
    ]
    again = [
        job for job in mine if job.is_covered and not job.is_released and job.charged_up_to > worth
    ]
    again.sort(key=lambda job: job.charged_up_to)
    for job in again:
        context.put(job, is_covered=False)
        context.note(
            job.id,
            "uncovered",
            "its client finished a release before the voucher was on the chain: pay is held again",
        )
    charges = (*(job.id for job in again), *client.open_charges)
    context.state.clients[client.account] = replace(client, vouched=worth, open_charges=charges)


def _cover(context: StepContext, account: Address) -> dict[Hash32, Job]:
    """Marks the charges that a client's vouchers reach as covered, and returns their jobs by id. It
    goes in the order in which the charges were made, and stops at the first that no voucher
    reaches.
    """
    client = context.state.clients[account]
    covered: dict[Hash32, Job] = {}
    for job_id in client.open_charges:
        job = context.state.jobs[job_id]
        if job.charged_up_to > client.vouched:
            break
        covered[job_id] = release(context, context.put(job, is_covered=True))
    context.state.clients[account] = replace(
        context.state.clients[account], open_charges=client.open_charges[len(covered) :]
    )
    return covered


def release(context: StepContext, job: Job) -> Job:
    """Makes a job's held credits final once its verdict is final and a voucher covers its charge. A
    second call changes nothing.
    """
    if (
        job.is_released
        or not job.is_covered
        or not isinstance(job.phase, Decided)
        or not job.phase.is_final
    ):
        return job
    job = context.put(job, is_released=True)
    context.state.finished[job.id] = context.at
    for item in job.split.credits:
        provider = context.state.providers[context.state.leases[item.assignment_hash].provider]
        moved = replace(
            provider,
            held=Amount(provider.held - item.amount),
            final=Amount(provider.final + item.amount),
        )
        assert moved.held >= 0, "I1: more released than held"
        context.state.providers[provider.owner] = moved
        _end_probation_by_pay(context, provider.owner)
        context.state.statements_due[provider.owner] = True
    own, split = context.state.own, job.split
    client = context.state.clients[job.submission.order.message.client]
    refund, waiting = (
        Amount(client.refund + split.refund),
        Amount(client.refund_held - split.refund),
    )
    paid = Amount(client.fund_paid + split.fund)
    fees = Amount(client.fees_paid + split.fee)
    context.state.clients[client.account] = replace(
        client, refund=refund, refund_held=waiting, fund_paid=paid, fees_paid=fees
    )
    context.change_own(
        fee=Amount(own.fee + split.fee),
        fee_held=Amount(own.fee_held - split.fee),
        fund=Amount(own.fund + split.fund),
        fund_held=Amount(own.fund_held - split.fund),
        is_dirty=own.is_dirty or split.charged > 0,
    )
    context.note(job.id, "final", "the client's voucher covers it: the pay is final")
    return job


def check(context: StepContext) -> None:
    """Asserts I1 off chain: charged = final + held + fees + fund + refunds. Its cost is linear in
    accounts, so only the simulator and tests use it.
    """
    state, own = context.state, context.state.own
    charged = sum(client.charged for client in state.clients.values())
    credited = sum(provider.final + provider.held for provider in state.providers.values())
    kept = own.fee + own.fee_held + own.fund + own.fund_held
    refunds = sum(client.refund + client.refund_held for client in state.clients.values())
    parts = sum(client.fund_paid - client.fund_spent for client in state.clients.values())
    assert own.fund >= parts, f"5.99: clients' parts are {parts}, and the fund has {own.fund}"
    assert charged == credited + kept + refunds, (
        f"I1: charged {charged}, credited {credited}, kept {kept}, refunds {refunds}"
    )
    reserved: Counter[Address] = Counter()
    for job in state.jobs.values():
        reserved[job.submission.order.message.client] += job.reserved
    under_way = Counter(state.jobs[job_id].submission.order.message.client for job_id in state.live)
    for client in state.clients.values():
        account = client.account
        assert client.reserved == reserved[account] and client.vouched <= client.escrowed, (
            "I4: a client signed for more than the chain holds"
        )
        assert client.under_way == under_way[account], (
            "a client has as many jobs under way as are live"
        )
