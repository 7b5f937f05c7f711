"""Takes orders: checks funds and nonce, chooses pool and rule, and signs the Ack, which fixes
the slots from which auditors are drawn.
"""

from msgspec import Struct

from quorate_coordinator.core.audit import eligible_snapshots, unverifiable
from quorate_coordinator.core.matching import nearest_offer, offers, work_windows
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model.entities import AwaitingRound, Client, Job, Matching, PoolSlots
from quorate_coordinator.core.model.events import ContentTaken
from quorate_coordinator.core.model.nonces import UsedNonces
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.model.tables import LIVE_BYTES
from quorate_coordinator.core.money import escrows, ledger
from quorate_protocol.limits import (
    EXECUTIONS_VERIFIED,
    OWNERS_MIN_ADAPTIVE,
    OWNERS_MIN_QUORUM,
    TIERS,
    USD,
)
from quorate_protocol.messages.classes import job_class, pools_id
from quorate_protocol.messages.commitment import secret_hash
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack, Order, Session
from quorate_protocol.messages.views import PlanRequest
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import credit, rentals, settlement
from quorate_protocol.rules.orders import Submission, first_draw, is_fast
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Comparator,
    Hash32,
    Label,
    Sequence,
    VerifyTier,
    usd,
)
from quorate_protocol.values import replace

LIVE_JOBS_MAX = 100_000
JOBS_MAX = 400_000  # with finished ones that are not archived yet
JOBS_PER_CLIENT_MAX = 4096  # under way; a 24th of `LIVE_JOBS_MAX`
LIVE_BYTES_MAX = 2 << 30  # of memory, for all live orders
ORDER_BYTES = 12 << 10  # of memory, beside spec and terms
BYTES_PER_BYTE = 3  # a spec of many short strings takes so much memory for each of its bytes
COVERED_PER_USD = 64 << 20  # bytes of memory that a USD of an order's reservation covers
OPEN_CHARGES_MAX = 4096  # finished jobs of a client that its voucher does not cover
SESSIONS_KEPT = 4
CURABLE = frozenset({Code.BUSY, Code.REPLAYED})
"""Refusals after which a funded order stays: its client sends it again, or it ran before."""


def on_order(
    context: StepContext,
    submission: Submission,
    is_escrowed: bool = False,
    lacks_content: bool = False,
) -> Job:
    """The same order again returns the same job.

    `is_escrowed`: the chain holds its budget and pays it, so no tab is asked. `lacks_content`: no
    owner is asked until the coordinator has taken what it names. Otherwise content that nobody gets
    would cost owners run slots, and its client nothing.
    """
    order = submission.order.message
    job_id = context.digest(order)
    known = context.state.jobs.get(job_id)
    if known is not None:
        return known
    client = _client(context, order, is_escrowed)
    nonces = context.state.nonces.get(order.client) or UsedNonces()
    if nonces.is_used(order.nonce):
        raise Refused(
            Code.REPLAYED, f"order: nonce {order.nonce} was used, or lies below those used last"
        )
    size = bytes_of(submission)
    _check_room(context, client, size)
    _check_block(context)
    if rate_fee(context) > order.max_fee_bps:
        raise Refused(
            Code.PRICE_TOO_HIGH,
            f"order: maxFeeBps {order.max_fee_bps} is below this coordinator's {rate_fee(context)}",
        )
    _check_sources(submission, is_escrowed)
    chosen = choose_class(context, _planned(submission), order.client)
    if chosen.refusal is not None:
        raise chosen.refusal
    rule = _rule_of_escrow(order, chosen.rule) if is_escrowed else chosen.rule
    if is_fast(order, rule):
        _check_fast(context, order, lacks_content)
    terms = order, rule, context.rules.fee_bps
    if rule is Label.NONE:
        most = _most_of_rental(context, order, size, lacks_content)
    else:
        _check_budget(order, rule, settlement.worst_charge(*terms))
        most = Amount(0) if is_escrowed else settlement.charge_limit(*terms)
    if not is_escrowed:
        _check_funds(context, submission, client, most)
    _check_cover(size, most or order.budget)
    job = _new_job(context, submission, job_id, chosen, rule, most, is_escrowed)
    if lacks_content:
        job = replace(job, phase=Matching(job.waits_until))
    context.put(job)
    context.state.live[job_id] = True
    context.count_bytes(size)
    context.state.nonces[order.client] = nonces.using(order.nonce)
    context.state.clients[order.client] = replace(
        client,
        reserved=Amount(client.reserved + most),
        sessions=_with_session(client, submission.session),
        under_way=client.under_way + 1,
        live_bytes=client.live_bytes + size,
    )
    cost = "its escrow pays" if is_escrowed else f"at most {usd(most)} USD is charged"
    if job.is_rental:
        cost = "paid by the minute, within what its client signs"
    context.note(job.id, "acked", f"rule {rule.name.lower().replace('_', '-')}, {cost}")
    if why := work_windows.why_waits(context.state, order.client):
        context.note(job.id, "waits", why)
    return job


def answer(
    context: StepContext, submission: Submission, is_escrowed: bool, lacks_content: bool
) -> Envelope[Ack] | Refused:
    """If it refuses a funded order for good, it returns the refusal. The order can never be taken
    then, and the chain gives its budget back early (PROTOCOL 6.79).
    """
    try:
        return on_order(context, submission, is_escrowed, lacks_content).ack
    except Refused as refused:
        if not is_escrowed or refused.code in CURABLE:
            raise
        order = submission.order.message
        nonces = context.state.nonces.get(order.client) or UsedNonces()
        context.state.nonces[order.client] = nonces.using(order.nonce)
        escrows.give_back(context, order)
        return refused


def on_content_taken(context: StepContext, event: ContentTaken) -> None:
    job = context.state.jobs.get(event.job_id)
    if job is not None and job.lacks_content:
        context.put(job, phase=Matching(context.at))


def on_session(context: StepContext, session: Envelope[Session]) -> None:
    """Its key may then upload before the first order."""
    client = context.state.clients.get(session.message.client)
    if client is None:
        raise _no_tab(session.message.client)
    context.state.clients[client.account] = replace(client, sessions=_with_session(client, session))


def rate_fee(context: StepContext) -> int:
    return context.rules.fee_bps


def _client(context: StepContext, order: Order, is_escrowed: bool) -> Client:
    client = context.state.clients.get(order.client)
    if client is None and not is_escrowed:
        raise _no_tab(order.client)
    return client or Client(order.client)


def _no_tab(account: Address) -> Refused:
    return Refused(
        Code.INSUFFICIENT_FUNDS, f"client 0x{account.hex()} has locked nothing for this coordinator"
    )


def _rule_of_escrow(order: Order, rule: Label) -> Label:
    """`Jobs` pays only what two owners agree on, so every such job is executed twice at least, and
    only `exact` results count as the same.
    """
    if order.comparator is not Comparator.EXACT:
        raise Refused(Code.UNSUPPORTED, "order: only an exact comparator has an escrow of its own")
    if rule is Label.UNVERIFIED:
        raise Refused(Code.TOO_FEW_OWNERS, "order: its escrow pays only what two owners agree on")
    return Label.QUORUM_2


def _check_fast(context: StepContext, order: Order, lacks_content: bool) -> None:
    """Its round follows from the Ack, so its owners are drawn at once, and nothing may delay it."""
    if lacks_content:
        raise Refused(
            Code.UNSUPPORTED,
            "order: speed fast asks its owners at once, and the coordinator lacks image or inputs; "
            "upload them, or leave speed out",
        )
    if context.state.client_windows.get(order.client) is not None:
        raise Refused(
            Code.BUSY,
            "order: owners declined a job of this client, so its jobs start one by one; leave "
            "speed out",
        )


def bytes_of(submission: Submission) -> int:
    """Of memory while the order is live, rounded up."""
    written = len(submission.spec.encode()) + len(submission.terms.encode())
    return ORDER_BYTES + BYTES_PER_BYTE * written


def _check_cover(size: int, reserved: int) -> None:
    least = _least_cover(size)
    if reserved < least:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: it takes {size >> 10} KiB here, and {usd(Amount(reserved))} USD are reserved, "
            f"at least {usd(least)} are needed; raise max_price or send a smaller spec",
        )


def _least_cover(size: int) -> Amount:
    return Amount(-(-size * USD // COVERED_PER_USD))


def _most_of_rental(context: StepContext, order: Order, size: int, lacks_content: bool) -> Amount:
    """What it reserves: vouchers, and not the budget, say how long it goes on."""
    if lacks_content:
        raise Refused(
            Code.NOT_STORED, "order: the coordinator lacks a rental's image or inputs; upload them"
        )
    rules = context.rules
    if order.max_duration < rules.limits.meter_every:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: a rental lasts at least {rules.limits.meter_every} s; raise maxDuration",
        )
    most = rentals.reservation(order, rules.fee_bps, rules.limits, _least_cover(size))
    if order.budget < most:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: a rental's budget must cover {rules.limits.rental_ahead} s at maxPricePerHour "
            f"and the fee, {usd(most)} USD here; raise the budget",
        )
    return most


def _check_room(context: StepContext, client: Client, size: int) -> None:
    """A client's live orders take at most what they leave free: a new client finds room."""
    free = LIVE_BYTES_MAX - (context.state.counters.get(LIVE_BYTES) or 0)
    if client.live_bytes + size > free:
        raise Refused(
            Code.BUSY,
            f"order: this client's live orders take {client.live_bytes >> 10} KiB, and "
            f"{free >> 10} KiB are free; wait for one of them",
        )
    if len(context.state.live) >= LIVE_JOBS_MAX or len(context.state.jobs) >= JOBS_MAX:
        raise Refused(Code.BUSY, "order: too many jobs are under way here")
    if client.under_way >= JOBS_PER_CLIENT_MAX:
        raise Refused(
            Code.BUSY,
            f"order: {JOBS_PER_CLIENT_MAX} of this client's jobs are under way; wait for one of "
            "them",
        )
    if len(client.open_charges) >= OPEN_CHARGES_MAX:
        raise Refused(
            Code.BUSY,
            f"order: {OPEN_CHARGES_MAX} finished jobs of this client are not covered; sign a "
            f"voucher first",
        )


def _check_block(context: StepContext) -> None:
    """Others could not compare the Ack's slots with the chain (PROTOCOL §3)."""
    age, most = context.at - context.state.own.block_time, context.rules.limits.ack_age_max
    if age > most:
        raise Refused(
            Code.BUSY,
            f"order: the coordinator's newest block is {age} s old, and {most} s is the "
            "limit; order again when its chain node answers",
        )


def _check_sources(submission: Submission, is_escrowed: bool) -> None:
    """A client could take a source away once its first execution has it. Then the client pays that
    execution, and not the audit fund (5.110).
    """
    if not submission.spec.has_sources():
        return
    if is_escrowed:
        raise Refused(
            Code.UNSUPPORTED,
            "order: an order with an escrow of its own takes no inputs from a source; upload them",
        )
    if not submission.order.message.accept_unverified:
        raise Refused(
            Code.UNSUPPORTED,
            "order.acceptUnverified: set it, because an input comes from a source, which may be "
            "gone before another owner reads it; or upload the input",
        )


def _check_budget(order: Order, rule: Label, worst: Amount) -> None:
    if rule is not Label.UNVERIFIED and order.max_executions < EXECUTIONS_VERIFIED:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: maxExecutions {order.max_executions} must be at least "
            f"{EXECUTIONS_VERIFIED}, because a third execution decides when two differ",
        )
    if worst > order.budget:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: the budget of {usd(order.budget)} USD does not cover maxPricePerHour × "
            f"maxDuration × {settlement.executions_priced(rule)} executions + fee = "
            f"{usd(worst)} USD; raise the budget, or lower the price or maxDuration",
        )


def _check_funds(context: StepContext, submission: Submission, client: Client, most: int) -> None:
    session = submission.session.message
    if client.tab.closes_at:
        raise Refused(
            Code.INSUFFICIENT_FUNDS,
            "order: its client's tab is closing; finish it and deposit again",
        )
    committed = client.charged + client.reserved + most
    locked = ledger.orderable(context.state, client)
    if committed > locked:
        available = max(0, locked - client.charged - client.reserved)
        depth = context.rules.limits.chain_depth
        young = f"; a deposit counts once it is {depth} blocks deep" if depth > 1 else ""
        raise Refused(
            Code.INSUFFICIENT_FUNDS,
            f"order: it may cost {usd(most)} USD at most, and {usd(available)} USD of what is "
            f"locked is available{young}",
        )
    up_to = settlement.signable(session)
    if committed > up_to:
        raise Refused(
            Code.INSUFFICIENT_FUNDS,
            f"session: its limit of {usd(up_to)} USD is below the cumulative debt of "
            f"{usd(committed)} USD; sign a new session",
        )
    needed = credit.voucher_needed(client.charged, Amount(client.reserved + most), client.fees_paid)
    if client.vouched < needed:
        raise Refused(
            Code.NO_VOUCHER,
            f"order: it may cost {usd(most)} USD; sign a voucher of at least {usd(needed)} USD "
            "first, then send the same order again",
        )


class Choice(Struct, frozen=True):
    """Pools and verification rule of an order, and why it is refused, if it is."""

    pool: Hash32  # of the primary
    rule: Label
    refusal: Refused | None = None
    pools: tuple[Hash32, ...] = ()  # of the auditors; none without a pool that fits


def choose_class(context: StepContext, wanted: PlanRequest, client: Address) -> Choice:
    """Chooses for a client's order, and for its plan of one: of the pools with a fitting offer, the
    one with most owners. Then it chooses the pools of the auditors. Refuses if none fits, or if the
    job cannot be verified and the client does not accept that.
    """
    spec, price_max = wanted.spec, wanted.max_price_per_hour
    refusal = None
    pool = offers.class_for(context, wanted.pool, spec, price_max)
    is_thin = pool is None
    if pool is None:
        pool = offers.class_for(context, wanted.pool, spec, price_max, is_thin_too=True)
        if pool is None:
            why = nearest_offer.no_offer(context, spec, price_max, wanted.pool)
            return Choice(wanted.pool, Label.NONE, Refused(Code.NO_OFFER, why))
    if spec.kind.is_rental:
        return Choice(pool, Label.NONE, None, (pool,))
    if wanted.verify_tier is VerifyTier.NONE:  # nobody audits it, so few owners are enough
        return Choice(pool, Label.UNVERIFIED, None, (pool,))
    pools = offers.auditing_pools(context, pool, wanted.pool, spec, price_max)
    if is_thin and not (len(pools) > 1 and offers.is_of_many(context, *pools)):
        refusal = Refused(Code.TOO_FEW_OWNERS, nearest_offer.thin_class(context, pool))
    owners = len(offers.owners_of(context, *pools))
    cannot_verify = unverifiable.refusal(context, client, spec)
    if cannot_verify is None and owners < OWNERS_MIN_QUORUM:
        cannot_verify = Refused(
            Code.TOO_FEW_OWNERS, nearest_offer.few_owners(context, spec, price_max, pool, pools)
        )
    if cannot_verify is not None:
        refused = None if wanted.accept_unverified else cannot_verify
        return Choice(pool, Label.UNVERIFIED, refusal or refused, pools)
    is_large = owners >= OWNERS_MIN_ADAPTIVE and context.rules.limits.name == "mainnet"
    is_adaptive = is_large and wanted.verify_tier in TIERS
    lonely = nearest_offer.lonely_price(context, pools, spec, price_max)
    rule = Label.ADAPTIVE if is_adaptive else Label.QUORUM_2
    return Choice(pool, rule, refusal or lonely, pools)


def _planned(submission: Submission) -> PlanRequest:
    order = submission.order.message
    return PlanRequest(
        submission.spec,
        order.max_price_per_hour,
        order.verify_tier,
        order.accept_unverified,
        order.pool,
    )


def _new_job(
    context: StepContext,
    submission: Submission,
    job_id: Hash32,
    chosen: Choice,
    rule: Label,
    most: Amount,
    is_escrowed: bool,
) -> Job:
    pool, pools, market = chosen.pool, chosen.pools, context.state.market
    eligible, lists = market.eligible(*pools), context.state.pool_slots
    trust_class = job_class(submission.spec.kind, submission.spec.compare.comparator, pool)
    secret = context.derive("x")
    ack = Ack(
        job_id=job_id,
        pool=pools_id(pools),
        ack_time=context.at,
        slot_block=context.state.own.block,
        eligible_root=eligible.root,
        state_root=market.trust_root(trust_class),
        log_root=context.state.own.log.root(),
        log_length=Sequence(context.state.own.log.count),
        secret_hash=secret_hash(secret),
        rule=rule,
        fee_bps=context.rules.fee_bps,
        escrowed=is_escrowed,
    )
    eligible_snapshots.add_job(context, pools, eligible)
    phase: Matching | AwaitingRound = Matching(context.at)
    commits: tuple[Hash32, ...] = ()
    if is_fast(submission.order.message, rule):
        wanted = first_draw(submission.order.message, rule)
        phase = AwaitingRound(0, wanted, beacon_time.round_of_fast(context), ())
        commits = (context.digest(ack),)
        context.state.commits[commits[0]] = job_id
    return Job(
        id=job_id,
        submission=submission,
        created_at=context.at,
        ack=context.seal(ack),
        secret=secret,
        pool=market.pools[pool],
        pools=tuple(market.pools[item] for item in pools),
        list_lengths=tuple(len(lists.get(item, PoolSlots()).slots) for item in pools),
        slot_block_hash=context.state.blocks.get(context.state.own.block) or ZERO_HASH,
        reserved=most,
        phase=phase,
        commits=commits,
        live_bytes=bytes_of(submission),
    )


def _with_session(client: Client, session: Envelope[Session]) -> tuple[Envelope[Session], ...]:
    others = tuple(item for item in client.sessions if item != session)
    return (*others, session)[-SESSIONS_KEPT:]
