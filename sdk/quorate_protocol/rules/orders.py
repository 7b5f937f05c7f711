"""Checks of an order and its session before the coordinator matches the job (PROTOCOL §3, §4)."""

from msgspec import Struct

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import EXECUTIONS_MAX, TIERS, Limits
from quorate_protocol.messages import job_spec, order_terms
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.order_terms import OrderTerms
from quorate_protocol.messages.signed import Order, Session
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Comparator,
    Label,
    PriceTier,
    UnixSeconds,
    VerifyTier,
)

FEE_BPS_MAX = 2_000
PREMIUM_BPS_MAX = 10_000


class Submission(Struct, frozen=True):
    """What a client posts: its order, the session of its key, and the documents that it names."""

    order: Envelope[Order]
    session: Envelope[Session]
    spec: job_spec.JobSpec
    terms: OrderTerms = OrderTerms()
    escrowed: bool = False  # its client funded it in `Jobs`, with the order's budget


def escrow_until(order: Order, limits: Limits) -> UnixSeconds:
    """Returns until when executions of an order with an escrow of its own can be shown on chain."""
    return UnixSeconds(order.expiry + order.max_duration + limits.escrow_evidence_age)


def validate(
    submission: Submission,
    domain: Domain,
    recover: Recover,
    coordinator: Address,
    now: UnixSeconds,
    limits: Limits,
) -> None:
    """Checks everything that needs no state of the coordinator. `Refused` names the wrong field."""
    order, session, spec = submission.order.message, submission.session.message, submission.spec
    job_spec.validate(spec)
    order_terms.validate(submission.terms)
    _check_session(submission, domain, recover, coordinator, now, limits)
    if order.client != session.client or order.coordinator != coordinator:
        raise Refused(
            Code.WRONG_SIGNER, "order: its client or coordinator is not the one of the session"
        )
    if order.spec_hash != spec.digest() or order.input_root != job_spec.input_root(spec):
        raise Refused(Code.MALFORMED, "order: specHash or inputRoot is not the one of the spec")
    if order.terms_hash != submission.terms.digest():
        raise Refused(Code.MALFORMED, "order: termsHash is not the one of the terms")
    if order.max_duration != spec.paid_seconds():
        raise Refused(
            Code.MALFORMED,
            f"order: maxDuration is {order.max_duration} s, the spec says {spec.paid_seconds()} s "
            f"(of it {spec.fetch_allowance()} s for fetching)",
        )
    check_price_tier(order.price_tier)
    if not now < order.expiry <= now + 30 * 86_400:
        raise Refused(Code.EXPIRED, "order: expiry must be in the future, at most 30 days ahead")
    if order.verify_tier is VerifyTier.TEE:
        raise Refused(
            Code.UNSUPPORTED,
            "order: verifyTier must be none, lean, standard, strict, critical or quorum-2",
        )
    if spec.kind.is_rental:
        _check_rental(submission)
    elif order.verify_tier is VerifyTier.NONE and not order.accept_unverified:
        raise Refused(
            Code.MALFORMED,
            "order: verifyTier none is not verified; set acceptUnverified, or choose another tier",
        )
    if order.comparator is not spec.compare.comparator or order.sealed_key_hash != ZERO_HASH:
        raise Refused(
            Code.UNSUPPORTED,
            "order: comparator must be the spec's, and sealedKeyHash is not offered yet",
        )
    is_exact = order.comparator is Comparator.EXACT
    is_judged = is_exact and order.verify_tier is not VerifyTier.NONE
    if order.caseable and not is_judged:
        raise Refused(
            Code.MALFORMED, "order: a caseable job has the comparator exact and a verifyTier"
        )
    if not 1 <= order.max_executions <= EXECUTIONS_MAX:
        raise Refused(Code.BAD_AMOUNT, f"order: maxExecutions must be 1 to {EXECUTIONS_MAX}")
    if order.max_fee_bps > FEE_BPS_MAX or order.audit_premium_bps > PREMIUM_BPS_MAX:
        raise Refused(
            Code.BAD_AMOUNT,
            f"order: maxFeeBps at most {FEE_BPS_MAX}, auditPremiumBps at most {PREMIUM_BPS_MAX}",
        )
    if not 0 < order.max_price_per_hour < 2**64 or not 0 < order.budget < 2**100:
        raise Refused(
            Code.BAD_AMOUNT,
            "order: maxPricePerHour must be 1 to 2^64 - 1, and budget 1 to 2^100 - 1",
        )


def _check_rental(submission: Submission) -> None:
    order = submission.order.message
    if order.verify_tier is not VerifyTier.NONE or order.max_executions != 1:
        raise Refused(
            Code.UNSUPPORTED,
            "order: a rental has no result to verify; set verifyTier none and maxExecutions 1",
        )
    if order.caseable or submission.escrowed:
        raise Refused(
            Code.UNSUPPORTED,
            "order: a rental is paid by the minute over the tab; leave caseable and escrow out",
        )


def allows(order: Order, rule: Label) -> bool:
    """Whether a coordinator may verify the order by this rule."""
    match rule:
        case Label.UNVERIFIED:
            return order.accept_unverified
        case Label.ADAPTIVE:
            return order.verify_tier in TIERS
        case Label.QUORUM_2:
            return order.verify_tier is not VerifyTier.NONE
        case Label.NONE:
            return False


def is_fast(order: Order, rule: Label) -> bool:
    """Whether the beacon draws both executions of the job's first batch, before either starts."""
    return order.verify_tier is VerifyTier.QUORUM_2_FAST and rule is Label.QUORUM_2


def first_draw(order: Order, rule: Label) -> int:
    """How many executions the draw of the first batch wants, if the beacon wants an audit."""
    return 2 if is_fast(order, rule) else 1


def check_price_tier(tier: PriceTier) -> None:
    if tier is not PriceTier.ON_DEMAND:
        raise Refused(
            Code.UNSUPPORTED,
            f"order: priceTier must be {PriceTier.ON_DEMAND.value} (on demand), not {tier.value}; "
            "no other tier is offered yet",
        )


def _check_session(
    submission: Submission,
    domain: Domain,
    recover: Recover,
    coordinator: Address,
    now: UnixSeconds,
    limits: Limits,
) -> None:
    session = submission.session.message
    if signer(domain, submission.session, recover) != session.client:
        raise Refused(
            Code.WRONG_SIGNER, "session: not signed by its client account (or for another chain)"
        )
    if session.coordinator != coordinator:
        raise Refused(Code.WRONG_SIGNER, "session: it is for another coordinator")
    if not now < session.expires <= now + limits.session_max + 60:
        raise Refused(
            Code.EXPIRED, f"session: must expire within {limits.session_max} s; sign a new one"
        )
    if signer(domain, submission.order, recover) != session.session_key:
        raise Refused(
            Code.WRONG_SIGNER, "order: not signed by the session key (or for another chain)"
        )
