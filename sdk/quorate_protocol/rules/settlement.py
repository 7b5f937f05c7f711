"""Settlement of one job: what the client is charged, and who gets it.

`bill` says it from signed messages alone, so coordinator, client, provider and `quorate verify`
compute the same.

Every charged millionth goes somewhere (I1): charged = Σ credits + fee + fund + refund. The fee
comes on top of the pay and inside the budget. Every division rounds down, and the client keeps the
remainder.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.limits import DIFFERENT_RESULTS, EXECUTIONS_MAX, EXECUTIONS_VERIFIED
from quorate_protocol.messages.signed import Ack, Assignment, Order, Session, Verdict
from quorate_protocol.rules import agreement as agreements
from quorate_protocol.rules import confirmation
from quorate_protocol.rules.agreement import EXACT, Agreement
from quorate_protocol.rules.confirmation import Repeat
from quorate_protocol.units import (
    BPS_ONE,
    ZERO_HASH,
    Amount,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    Outcome,
    Seconds,
    UnixSeconds,
    pay_for,
    share_bps,
)

FUND_SHARE_OF_FEE = 10
"""Under quorum-2 one in so many millionths of the fee goes to the audit fund."""

SIGNABLE_MAX = Amount(2**96 - 1)
"""The largest sum of a voucher that `Escrow` can be shown. Nobody takes a voucher above it."""


USAGE_MS_MIN = 1000  # what the shortest execution is billed


class Credit(Struct, frozen=True):
    """The pay of one execution."""

    assignment_hash: Hash32
    amount: Amount


class Split(Struct, frozen=True):
    """The amounts that a verdict moves. They add up to what the client is charged (I1)."""

    charged: Amount  # from the client
    credits: tuple[Credit, ...]  # to providers
    fee: Amount  # to the coordinator
    fund: Amount  # to the audit fund: premiums and forfeited pay
    refund: Amount = Amount(0)  # held pay back to the client, if the job could not run again

    def __post_init__(self) -> None:
        spent = sum(credit.amount for credit in self.credits) + self.fee + self.fund + self.refund
        assert self.charged == spent, "I1: the parts of a split must add up to the charge"


def signable(session: Session) -> Amount:
    """The cumulative debt up to which the chain honours vouchers of a session."""
    return min(session.up_to, SIGNABLE_MAX)


def is_audit_billed(order: Order, rule: Label, is_witnessed: bool, executions: int) -> bool:
    """Whether the client pays the audit itself instead of the premium (PROTOCOL §4).

    That is true for an adaptive order that needs a witness and got none: such an order is always
    audited. `executions` is the count in the first batch. It is 1 when no auditor could be drawn;
    then there was no audit to pay.
    """
    return (
        rule is Label.ADAPTIVE
        and not is_witnessed
        and not order.accept_unwitnessed
        and executions > 1
    )


def executions_priced(rule: Label) -> int:
    """Returns the number of executions that a client's budget must cover.

    A verified job costs two executions when two agree, and three when they do not. An adaptive
    premium is at most one execution.
    """
    return 1 if rule in (Label.UNVERIFIED, Label.NONE) else EXECUTIONS_VERIFIED


def executions_expected(rule: Label) -> int:
    return 2 if rule is Label.QUORUM_2 else 1


def cost_of(order: Order, executions: int, seconds: int, fee_bps: Bps) -> Amount:
    pays = Amount(_pay_of_seconds(order, seconds) * executions)
    return Amount(pays + share_bps(pays, fee_bps))


def worst_charge(order: Order, rule: Label, fee_bps: Bps) -> Amount:
    """Returns what the budget of an order must cover under a rule (`executions_priced`)."""
    return cost_of(order, executions_priced(rule), order.max_duration, fee_bps)


def charge_limit(order: Order, rule: Label, fee_bps: Bps) -> Amount:
    """Returns the most that a job can cost its client: what all executions that its order allows
    can cost, at most its budget. The coordinator reserves it from the client's tab.
    """
    most = 1 if rule is Label.UNVERIFIED else order.max_executions
    return Amount(min(order.budget, cost_of(order, most, order.max_duration, fee_bps)))


def _pay_of_seconds(order: Order, seconds: int) -> Amount:
    return pay_for(Milliseconds(seconds * 1000), order.max_price_per_hour, Amount(2**127))


def pay_of(order: Order, assignment: Assignment, usage: Milliseconds) -> Amount:
    """Pay of one execution: usage × signed price, a second at least, and at most for the signed
    duration and budget.
    """
    return pay_for(
        Milliseconds(min(max(USAGE_MS_MIN, usage), assignment.max_duration * 1000)),
        assignment.price_per_hour,
        order.budget,
    )


def payable_usage(
    usage: Milliseconds, assignment: Assignment, by: UnixSeconds, accept_within: Seconds
) -> Milliseconds:
    """Returns the run time that is paid: what the provider measured, but at most the time that it
    had.

    That time is from the signing of its Assignment, which is `accept_within` before acceptBy, to
    `by`, its CommitReceipt. The coordinator's clock gives both in whole seconds, so a run may be up
    to a second longer than their difference.
    """
    passed = max(0, by - (assignment.accept_by - accept_within) + 1)
    return Milliseconds(min(usage, passed * 1000))


def split(
    order: Order, rule: Label, fee_bps: Bps, paid: Sequence[Credit], has_premium: bool = True
) -> Split:
    """Splits the charge of the executions that the client pays for.

    If the budget does not cover them, each gets the same fraction of its pay. This happens only to
    a job without a decision, because `worst_charge` had to fit the budget.
    """
    is_due = has_premium and rule is Label.ADAPTIVE and paid
    premium = share_bps(paid[0].amount, order.audit_premium_bps) if is_due else Amount(0)
    earned, room = sum(item.amount for item in paid), pays_max(order.budget - premium, fee_bps)
    credits = (
        tuple(paid)
        if earned <= room
        else tuple(Credit(x.assignment_hash, Amount(x.amount * room // earned)) for x in paid)
    )
    pays = Amount(sum(item.amount for item in credits))
    fee = Amount(min(share_bps(pays, fee_bps), max(0, order.budget - premium - pays)))
    fund_part = fee // FUND_SHARE_OF_FEE if rule is Label.QUORUM_2 else 0
    charged = Amount(pays + fee + premium)
    return Split(charged, credits, Amount(fee - fund_part), Amount(premium + fund_part))


def pays_max(amount: int, fee_bps: Bps) -> int:
    """Returns the largest sum of pays that leaves room for its fee, which is rounded down."""
    return -(-(max(0, amount) + 1) * BPS_ONE // (BPS_ONE + fee_bps)) - 1


NOTHING = Split(Amount(0), (), Amount(0), Amount(0))


class Ran(Struct, frozen=True):
    """One committed execution, as its bill needs it."""

    assignment_hash: Hash32
    pay: Amount  # `pay_of` its payable usage
    result: Hash32 | None  # None when it was not revealed
    # The execution that its provider repeated, to confirm the fault of another; None otherwise.
    repeats: Hash32 | None = None
    class_id: Hash32 = ZERO_HASH  # determinism class


def repeats_in(ran: Sequence[Ran]) -> list[Repeat]:
    first = {item.assignment_hash: item for item in ran}
    found = []
    for item in ran:
        if item.repeats:
            before = first[item.repeats]
            again = item.result if item.class_id == before.class_id else None
            found.append(Repeat(item.repeats, before.result, again, before.class_id))
    return found


def counting(ran: Sequence[Ran]) -> list[Ran]:
    void = confirmation.contradicted(repeats_in(ran))
    return [item for item in ran if not item.repeats and item.assignment_hash not in void]


class Bill(Struct, frozen=True):
    """Who pays the executions of a decided job. The output is readable if the client pays one."""

    by_client: tuple[Hash32, ...]  # assignment hashes, in CommitSet order
    by_fund: tuple[Credit, ...]  # paid as far as the audit fund reaches, in CommitSet order
    split: Split

    @property
    def is_readable(self) -> bool:
        return bool(self.by_client)


def further_affordable(order: Order, fee_bps: Bps, ran: Sequence[Ran]) -> int:
    """Returns how many further executions the budget covers, each at the order's price for the
    whole duration, after those that were revealed.
    """
    spent = sum(item.pay for item in counting(ran) if item.result is not None)
    one = _pay_of_seconds(order, order.max_duration)
    left = max(0, pays_max(order.budget, fee_bps) - spent)
    return min(EXECUTIONS_MAX, left // one) if one else EXECUTIONS_MAX


def is_clients_limit(
    order: Order, fee_bps: Bps, ran: Sequence[Ran], agreement: Agreement = EXACT
) -> bool:
    """Whether an undecided job ended at its client's own limit, and not for lack of owners.

    That is so when as many executions were revealed as the order allows, when three owners gave
    three results of which no two agree, when one owner gave two, or when the budget covers no
    further execution.
    """
    if confirmation.contradicted(repeats_in(ran)):
        return True
    results = [item.result for item in counting(ran) if item.result is not None]
    return (
        len(results) >= order.max_executions
        or agreements.different(agreement, results) >= DIFFERENT_RESULTS
        or not further_affordable(order, fee_bps, ran)
    )


def bill(
    order: Order,
    ack: Ack,
    verdict: Verdict,
    ran: Sequence[Ran],
    has_audit_billed: bool = False,
    was_held: bool = False,
    agreement: Agreement = EXACT,
) -> Bill:
    """Says which executions the client of a decided job pays, which the audit fund, and how the
    charge splits (PROTOCOL §4 Outputs and pay).

    `ran` has all executions of the verdict in CommitSet order, and `has_audit_billed` is
    `is_audit_billed`. `was_held` says that an earlier verdict accepted the first execution alone:
    that one charged the client, and later ones move held pay only.
    """
    honest = _honest(verdict, ran)
    has_clients_limit = is_clients_limit(order, ack.fee_bps, ran, agreement)
    billed = [ran[0]]
    if not was_held:
        billed = _billed(order, ack, verdict, honest, has_clients_limit, has_audit_billed)
    credits = [Credit(item.assignment_hash, item.pay) for item in billed]
    has_premium = was_held or (verdict.outcome is Outcome.ACCEPTED and not has_audit_billed)
    if confirmation.contradicted(repeats_in(ran)):
        billed = _covered(order, ack, billed)
        credits = [Credit(item.assignment_hash, item.pay) for item in billed]
    unbilled = [item for item in honest if item not in billed]
    if verdict.outcome is Outcome.ACCEPTED:
        unbilled += _confirming(ran, honest)
    elif verdict.outcome is Outcome.UNRESOLVED and not has_clients_limit:
        unbilled = []  # two results, and nobody knows which one is true
    fund = (Credit(item.assignment_hash, item.pay) for item in unbilled)
    return Bill(
        tuple(item.assignment_hash for item in billed),
        tuple(fund),
        split(order, ack.rule, ack.fee_bps, credits, has_premium) if credits else NOTHING,
    )


def _covered(order: Order, ack: Ack, billed: list[Ran]) -> list[Ran]:
    """Returns the executions, in CommitSet order, that the most that the order may cost covers.
    Repeats come on top of maxExecutions, so it may cover less than all.
    """
    room = pays_max(charge_limit(order, ack.rule, ack.fee_bps), ack.fee_bps)
    found: list[Ran] = []
    for item in billed:
        if sum(other.pay for other in found) + item.pay <= room:
            found.append(item)
    return found


def _confirming(ran: Sequence[Ran], group: Sequence[Ran]) -> list[Ran]:
    result = {item.assignment_hash: item.result for item in group}
    return [item for item in ran if item.repeats in result and item.result == result[item.repeats]]


def _honest(verdict: Verdict, ran: Sequence[Ran]) -> list[Ran]:
    """Returns the executions that are paid by somebody: the accepted ones, else all revealed."""
    if verdict.outcome is Outcome.ACCEPTED:
        return [item for item in ran if item.assignment_hash in verdict.group]
    return [item for item in ran if item.result is not None]


def _billed(
    order: Order,
    ack: Ack,
    verdict: Verdict,
    honest: list[Ran],
    has_clients_limit: bool,
    has_audit_billed: bool,
) -> list[Ran]:
    is_read = [item for item in honest if item.assignment_hash in verdict.read]
    match verdict.outcome:
        case Outcome.ACCEPTED:
            # Premiums fill the fund that pays the auditors of an adaptive job. The fund also pays
            # who was drawn to confirm a fault.
            first = honest[: 2 if has_audit_billed else executions_expected(ack.rule)]
        case Outcome.LAPSED:
            return honest  # stopped by its client: the elapsed time
        case Outcome.UNRESOLVED if has_clients_limit:
            return honest
        case Outcome.CANNOT_VERIFY if order.accept_unverified:
            first = honest[:1]
        case Outcome.UNRESOLVED | Outcome.CANNOT_VERIFY:
            first = []
    return [item for item in honest if item in first or item in is_read]
