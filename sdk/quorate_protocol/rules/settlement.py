"""Settlement of one job: what the client is charged, and who gets it.

Every charged millionth goes somewhere (I1): charged = Σ credits + fee + fund + refund. The fee
comes on top of the pay and inside the budget. Every division rounds down, and the client keeps the
remainder.
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
"""The largest session limit that the contract `Epochs` stores.

`Epochs` refuses a whole epoch that has a voucher above the stored limit.
"""


USAGE_ALLOWANCE_SECONDS = 120
"""The time from acceptBy to the commit, plus this, is the longest run that is paid.

acceptBy is up to 30 s after the Assignment was sent. The coordinator takes an Accept although the
provider's clock differs by up to a minute, and it follows small steps of its own clock at once. So
an honest provider never loses pay (I3).
"""


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


def executions_priced(rule: Label, accepts_unwitnessed: bool) -> int:
    """Returns the number of executions that a client's budget must cover.

    It is two in a small market (quorum-2), and two for an adaptive order that needs a witness. If
    no witness comes, the client pays the audit instead of the premium.
    """
    return (
        2 if rule is Label.QUORUM_2 or (rule is Label.ADAPTIVE and not accepts_unwitnessed) else 1
    )


def worst_charge(order: Order, rule: Label, max_duration: int, fee_bps: Bps) -> Amount:
    """Returns the most that a job can cost its client under a rule.

    It must fit the budget. The coordinator reserves it from the client's allocation.
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
    """Pay of one execution: usage × signed price, at most for the signed duration and budget."""
    return pay_for(
        Milliseconds(min(usage, assignment.max_duration * 1000)),
        assignment.price_per_hour,
        order.budget,
    )


def committed_by(closed: CommitSet, assignment_hash: Hash32, timing: Timing) -> UnixSeconds:
    """Returns a moment before which an execution of a closed batch must have committed.

    A primary commits before its beacon round appears, the others before the batch is closed.
    """
    is_primary = (
        closed.batch == 0
        and closed.beacon_round
        and closed.ordered[0].assignment_hash == assignment_hash
    )
    return timing.appears_at(closed.beacon_round) if is_primary else closed.closed_at


def payable_usage(usage: Milliseconds, assignment: Assignment, by: UnixSeconds) -> Milliseconds:
    """Returns the run time that is paid: what the provider measured, but at most the time that it
    had.

    That time is from acceptBy to `by`, plus USAGE_ALLOWANCE_SECONDS.
    """
    passed = max(0, by - assignment.accept_by + USAGE_ALLOWANCE_SECONDS)
    return Milliseconds(min(usage, passed * 1000))


def split(
    order: Order, rule: Label, fee_bps: Bps, paid: Sequence[Credit], has_premium: bool = True
) -> Split:
    """Splits the charge of the executions that the client pays for.

    These are the agreeing executions, or all that ran when the program was not deterministic.
    Later credits are cut to fit the budget, in order of commitment. This cannot happen to a
    deterministic program, because `worst_charge` had to fit the budget.
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
