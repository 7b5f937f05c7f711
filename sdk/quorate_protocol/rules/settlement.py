"""Who is paid what for one job: every micro-unit charged goes somewhere (I1).

charged = Σ credits + fee + fund + refund. The fee comes on top of pay, inside the budget; every
division rounds down and the client keeps the remainder.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_protocol.messages.signed import Assignment, CommitSet, Order, Session
from quorate_protocol.rules.beacon_rounds import Timing
from quorate_protocol.units import (
    BPS_ONE,
    Amount,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    UnixSeconds,
    pay_for,
    share_bps,
)

SIGNABLE_MAX = Amount(2**60 - 1)
"""What `Epochs` remembers of a session's upTo: it refuses a voucher above that, and the whole epoch with it."""


USAGE_ALLOWANCE_SECONDS = 120
"""Paid is at most so much more than passed from acceptBy to the commit. acceptBy lies up to 30 s after the Assignment was sent, Accepts are
taken from clocks that differ by a minute, and small steps of a clock are followed at once: whoever ran honestly is never cut (I3)."""


class Credit(Struct, frozen=True):
    """Pay of one execution."""

    assignment_hash: Hash32
    amount: Amount


class Split(Struct, frozen=True):
    """What a verdict moves."""

    charged: Amount
    credits: tuple[Credit, ...]
    fee: Amount
    fund: Amount  # into the audit fund (premium, forfeits)
    refund: Amount = Amount(0)  # back to the client: held pay of what could not be executed again

    def __post_init__(self) -> None:
        spent = sum(credit.amount for credit in self.credits) + self.fee + self.fund + self.refund
        assert self.charged == spent, "I1: money from nowhere"


def signable(session: Session) -> Amount:
    """Up to which cumulative debt the chain honours vouchers of a session."""
    return min(session.up_to, SIGNABLE_MAX)


def is_audit_billed(order: Order, rule: Label, is_witnessed: bool, executions: int) -> bool:
    """Whether the premium is the price of the audit itself: of an Order that nobody witnessed,
    which is always audited (PROTOCOL §4).

    `executions` of the first batch: where nobody could be drawn, there was no audit.
    """
    return (
        rule is Label.ADAPTIVE
        and not is_witnessed
        and not order.accept_unwitnessed
        and executions > 1
    )


def executions_priced(rule: Label, accepts_unwitnessed: bool) -> int:
    """Executions that a client's budget must cover: in a small market, and when nobody may come
    to witness, one more is the premium.
    """
    return (
        2 if rule is Label.QUORUM_2 or (rule is Label.ADAPTIVE and not accepts_unwitnessed) else 1
    )


def worst_charge(order: Order, rule: Label, max_duration: int, fee_bps: Bps) -> Amount:
    """The most a job can cost its client under a rule: what must fit the budget and is reserved
    of the allocation.
    """
    one = pay_for(Milliseconds(max_duration * 1000), order.max_price_per_hour, Amount(2**127))
    priced = executions_priced(rule, order.accept_unwitnessed)
    pays = one * priced
    premium = (
        share_bps(Amount(one), order.audit_premium_bps)
        if rule is Label.ADAPTIVE and priced == 1
        else 0
    )
    return Amount(pays + premium + share_bps(Amount(pays), fee_bps))


def pay_of(order: Order, assignment: Assignment, usage: Milliseconds) -> Amount:
    """Pay of one execution: usage × signed rate, at most the signed duration and budget."""
    return pay_for(
        Milliseconds(min(usage, assignment.max_duration * 1000)),
        assignment.price_per_hour,
        order.budget,
    )


def committed_by(closed: CommitSet, assignment_hash: Hash32, timing: Timing) -> UnixSeconds:
    """A moment by which an execution of a closed batch had committed: a primary before its round
    appeared, others before the closing.
    """
    is_primary = (
        closed.batch == 0
        and closed.beacon_round
        and closed.ordered[0].assignment_hash == assignment_hash
    )
    return timing.appears_at(closed.beacon_round) if is_primary else closed.closed_at


def believed(usage: Milliseconds, assignment: Assignment, by: UnixSeconds) -> Milliseconds:
    """How long it is paid for having run: what its provider says, and no longer than there was
    between Assignment and commit.
    """
    passed = max(0, by - assignment.accept_by + USAGE_ALLOWANCE_SECONDS)
    return Milliseconds(min(usage, passed * 1000))


def split(
    order: Order, rule: Label, fee_bps: Bps, paid: Sequence[Credit], has_premium: bool = True
) -> Split:
    """Settlement of executions that the client pays for: the agreeing ones, or those that ran
    when its program was not deterministic.

    Credits beyond the budget are cut in order of commitment, which worst_charge excludes for a
    deterministic program.
    """
    is_due = has_premium and rule is Label.ADAPTIVE and paid
    premium = share_bps(paid[0].amount, order.audit_premium_bps) if is_due else Amount(0)
    # The largest sum of pays that leaves room for its fee, which is rounded down.
    pays_max = -(-(max(0, order.budget - premium) + 1) * BPS_ONE // (BPS_ONE + fee_bps)) - 1
    credits: list[Credit] = []
    for credit in paid:
        left = pays_max - sum(item.amount for item in credits)
        credits.append(Credit(credit.assignment_hash, Amount(min(credit.amount, left))))
    pays = Amount(sum(item.amount for item in credits))
    fee = Amount(min(share_bps(pays, fee_bps), max(0, order.budget - premium - pays)))
    return Split(Amount(pays + fee + premium), tuple(credits), fee, premium)


NOTHING = Split(Amount(0), (), Amount(0), Amount(0))
