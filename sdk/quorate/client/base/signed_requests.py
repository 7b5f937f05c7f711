"""Builds what the client signs: sessions and orders. Reads no clock; the caller passes the random
part of a nonce.
"""

from dataclasses import dataclass

from quorate.base.errors import RefusedError, UsageError
from quorate.client.base.client_ledger import SpendingTotals
from quorate.job.job import Job
from quorate.job.quantities import format_amount
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.limits import EXECUTIONS_VERIFIED, USD, Limits
from quorate_protocol.messages.envelope import Envelope, Sign, seal
from quorate_protocol.messages.job_spec import JobSpec, input_root
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Order, Session
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.rules import rentals, settlement
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Comparator,
    Hash32,
    Label,
    Nonce,
    PriceTier,
    Small,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace

ORDER_SECONDS = 3600  # how long an order may wait for a provider
# A session's limit is rounded up to this step, so that many orders share one.
SESSION_STEP = Amount(100 * USD)
NONCE_AHEAD_MS = 30 * 86_400_000
PREMIUM_BPS: dict[VerifyTier, Bps] = {
    VerifyTier.NONE: Bps(0),
    VerifyTier.QUORUM_2: Bps(0),
    VerifyTier.QUORUM_2_FAST: Bps(0),
    VerifyTier.LEAN: Bps(500),
    VerifyTier.STANDARD: Bps(1_000),
    VerifyTier.STRICT: Bps(2_000),
    VerifyTier.CRITICAL: Bps(10_000),
}


@dataclass(frozen=True, slots=True)
class OrderDraft:
    """An order without nonce and expiry, the worst charge that its budget must cover, and the most
    that it can cost the tab.
    """

    order: Order
    worst_charge: Amount
    reserved: Amount

    def stamped(self, nonce: Nonce, now: float) -> Order:
        """Returns the order to sign, with its nonce and with an expiry counted from `now`."""
        return replace(self.order, nonce=nonce, expiry=UnixSeconds(int(now) + ORDER_SECONDS))

    def with_max_fee(self, fee_bps: Bps) -> "OrderDraft":
        """Returns the same draft with `fee_bps` as the highest fee of the coordinator."""
        order = replace(self.order, max_fee_bps=fee_bps)
        return OrderDraft(order, self.worst_charge, self.reserved)


def draft_order(
    job: Job, spec: JobSpec, client: Address, coordinator: Address, fee_bps: Bps
) -> OrderDraft:
    """Builds the order for a packed job; `fee_bps` is the coordinator's present fee.

    Raises UsageError if the job's budget cannot cover the worst case, and RefusedError if the fee
    is above the job's `max_fee_bps`.
    """
    if fee_bps > job.max_fee_bps:
        refused = Code.PRICE_TOO_HIGH
        detail = (
            f"the coordinator's fee is {fee_bps} bps, the job allows {job.max_fee_bps} "
            f"(max_fee_bps)"
        )
        raise RefusedError(refused.value, MEANINGS[refused].sentence, detail)
    order = Order(
        client=client,
        coordinator=coordinator,
        spec_hash=spec.digest(),
        input_root=input_root(spec),
        terms_hash=OrderTerms(job.name).digest(),
        price_tier=PriceTier.ON_DEMAND,
        max_price_per_hour=job.price(),
        budget=Amount(1),
        max_duration=spec.paid_seconds(),
        max_executions=Small(1 if job.is_unverified else job.max_executions),
        audit_premium_bps=PREMIUM_BPS[job.tier()],
        max_fee_bps=Bps(job.max_fee_bps),
        verify_tier=job.tier(),
        comparator=spec.compare.comparator,
        caseable=spec.compare.comparator is Comparator.EXACT and not job.is_unverified,
        pool=job.host(),
        witness=ZERO_ADDRESS,
        accept_unwitnessed=job.accept_unwitnessed,
        # Who may take a source away pays the execution that nobody can repeat (PROTOCOL 4.86).
        accept_unverified=job.may_be_unverified or spec.has_sources(),
        sealed_key_hash=ZERO_HASH,
        max_recipients=Small(0),
        expiry=UnixSeconds(0),
        nonce=Nonce(0),
    )
    # The highest charge over the rules that a coordinator may choose. An order of fewer than three
    # executions is taken only without verification.
    is_verified = order.max_executions >= EXECUTIONS_VERIFIED
    rule = Label.QUORUM_2 if is_verified else Label.UNVERIFIED
    worst = settlement.worst_charge(order, rule, fee_bps)
    order = replace(order, budget=_budget(job, worst))
    if job.escrow:
        _check_escrow(spec)
        return OrderDraft(order, worst, Amount(0))
    if job.is_rental:
        worst = Amount(min(worst, order.budget))  # it ends when that is used up (PROTOCOL 12.7)
        ahead = rentals.reserved_by_client(order, fee_bps, job.ahead_seconds())
        return OrderDraft(order, worst, ahead)
    most = settlement.charge_limit(order, rule, order.max_fee_bps)
    return OrderDraft(order, worst, most)


def _check_escrow(spec: JobSpec) -> None:
    if spec.compare.comparator is not Comparator.EXACT:
        raise UsageError(
            "escrow: the chain compares results byte by byte, and this job compares them "
            f"otherwise ({spec.compare.comparator.name.lower()}); leave escrow out"
        )


def _budget(job: Job, worst: Amount) -> Amount:
    """Returns the job's own budget, or the worst charge if it names none. A rental may have less:
    its budget ends it.
    """
    budget = job.budget_amount()
    if budget is not None and budget < worst and not job.is_rental:
        raise UsageError(
            f"budget: {format_amount(budget)} does not cover the worst case of "
            f"{format_amount(worst)} (max_price × max_duration × "
            "executions + fee); raise the budget, or lower max_price or max_duration"
        )
    return worst if budget is None else budget


def next_nonce(known_max: int, now: float, random64: int) -> Nonce:
    """Returns a nonce that grows with time, so that a voucher's floor covers earlier ones.

    Its low half is random, so that two programs never choose the same nonce.
    """
    wall = int(now * 1000)
    high = max(wall, (known_max >> 64) + 1)
    if high > wall + NONCE_AHEAD_MS:
        raise UsageError(
            "nonce: an earlier order used a time far in the future; check this machine's "
            "clock, now or then it is wrong"
        )
    return Nonce((high << 64) | random64)


def covers(
    session: Envelope[Session],
    key: Address,
    coordinator: Address,
    debt: SpendingTotals,
    reserved: Amount,
    now: float,
    limits: Limits,
) -> bool:
    """Returns whether a session still covers what a new order reserves, and has at least half its
    life left.
    """
    message = session.message
    reach = max(debt.signed, debt.charged + debt.promised + reserved)
    in_time = now + limits.session_max // 2 < message.expires
    return (
        in_time
        and message.session_key == key
        and message.coordinator == coordinator
        and reach <= message.up_to
    )


def make_session(
    domain: Domain,
    client: Address,
    key: Address,
    coordinator: Address,
    debt: SpendingTotals,
    reserved: Amount,
    now: float,
    limits: Limits,
    sign: Sign,
) -> Envelope[Session]:
    """Signs a new session for all that the client owes and has promised, rounded up to the next
    step.
    """
    reach = max(debt.signed, debt.charged + debt.promised + reserved)
    up_to = Amount((reach // SESSION_STEP + 1) * SESSION_STEP)
    message = Session(client, key, coordinator, up_to, UnixSeconds(int(now) + limits.session_max))
    return seal(domain, message, sign)


def job_id_of(domain: Domain, order: Order) -> Hash32:
    return digest(domain, order)
