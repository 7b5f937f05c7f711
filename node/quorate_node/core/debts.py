"""What one coordinator owes this provider, and which leases the provider may accept for that."""

from msgspec import Struct

from quorate_node.core.bidding import DeclineCause
from quorate_node.core.phases import Done, Execution
from quorate_node.core.terms import Policy, Terms
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Assignment, Verdict, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import rentals, tabs
from quorate_protocol.rules.settlement import SIGNABLE_MAX
from quorate_protocol.rules.tabs import Held, Owed, Tab
from quorate_protocol.units import (
    Address,
    Amount,
    DeclineReason,
    Hash32,
    Milliseconds,
    Outcome,
    UnixSeconds,
    pay_for,
    usd,
)
from quorate_protocol.values import replace

UNBOUNDED = Amount(2**127)


class Debt(Struct, frozen=True):
    """The pay of one coordinator, in sums since the beginning. `waits_for` was promised at
    `waits_since` and is not paid yet.
    """

    earned: Amount = Amount(0)  # by receipts that were checked, else by own usage and price
    voucher: Envelope[Voucher] | None = None  # the newest
    assignment: Envelope[Assignment] | None = None  # the one with the latest acceptBy
    tab: Tab = Tab()
    is_tab_known: bool = False
    waits_for: Amount = Amount(0)
    waits_since: UnixSeconds = UnixSeconds(0)
    rented: Amount = Amount(0)  # of `earned`, by meters that the coordinator took
    # what vouchers and tab had paid beyond `rented` when no rental ran
    paid_before: Amount = Amount(0)

    @property
    def covers_rentals(self) -> bool:
        return max(self.vouched, self.tab.paid) >= self.paid_before + self.rented

    @property
    def vouched(self) -> Amount:
        return self.voucher.message.cumulative if self.voucher else Amount(0)

    @property
    def held(self) -> Amount:
        return Amount(max(0, self.earned - max(self.vouched, self.tab.paid)))

    def waiting(self, key_ends: UnixSeconds) -> Held:
        return Held(self.vouched, self.waits_since, key_ends)


class LeasePay(Struct, frozen=True):
    """What one lease added to `Debt.earned`; an order's own escrow pays it if `is_escrowed`."""

    coordinator: Address
    amount: Amount
    is_escrowed: bool = False


NO_DEBT = Debt()


def check_voucher(
    voucher: Envelope[Voucher], coordinator: Address, signer: Address, terms: Terms
) -> None:
    """Raises Refused unless the coordinator's statement key promises this provider something."""
    message = voucher.message
    if terms.statement_keys.get(coordinator) != signer:
        raise Refused(Code.WRONG_SIGNER, "voucher: not signed by the coordinator's statement key")
    if (message.payer, message.payee) != (coordinator, terms.provider):
        raise Refused(Code.NOT_YOURS, "voucher: it is for another tab")
    if message.cumulative > SIGNABLE_MAX:
        raise Refused(Code.BAD_AMOUNT, "voucher: the chain takes no sum so large")


def with_voucher(debt: Debt, voucher: Envelope[Voucher], at: UnixSeconds) -> Debt:
    """Returns the debt with a voucher, unless an equal or a higher one is known."""
    if debt.voucher is not None and voucher.message.cumulative <= debt.vouched:
        return debt
    return _marked(replace(debt, voucher=voucher), at)


def with_assignment(debt: Debt, assignment: Envelope[Assignment]) -> Debt:
    known = debt.assignment
    if known is not None and assignment.message.accept_by <= known.message.accept_by:
        return debt
    return replace(debt, assignment=assignment)


def with_tab(debt: Debt, tab: Tab, at: UnixSeconds) -> Debt:
    """What a tab paid before this provider's journal began was earned too."""
    earned = debt.earned if debt.is_tab_known else Amount(max(debt.earned, tab.paid))
    return _marked(replace(debt, tab=tab, is_tab_known=True, earned=earned), at)


def _marked(debt: Debt, at: UnixSeconds) -> Debt:
    """A payroll that pays a part of what waits does not begin the wait again."""
    if debt.waits_for > debt.tab.paid:
        return debt
    if debt.vouched > debt.tab.paid:
        return replace(debt, waits_for=debt.vouched, waits_since=at)
    return replace(debt, waits_for=Amount(0), waits_since=UnixSeconds(0))


def why_unsecured(tab: Tab, owed: Owed, most: Amount, policy: Policy) -> DeclineCause | None:
    """Returns why a lease that pays at most `most` is not accepted; None if it is."""
    if owed.held > policy.max_held:
        text = (
            f"the coordinator holds {usd(owed.held)} USD of pay without a voucher, and your "
            f"--max-held is {usd(policy.max_held)}"
        )
        return DeclineCause(DeclineReason.UNSECURED, text)
    limit = tabs.accept_limit(tab, owed, policy.trust)
    if limit >= most:
        return None
    text = (
        f"the job pays up to {usd(most)} USD, and the coordinator's guarantee and your --trust of "
        f"{usd(policy.trust)} cover {usd(limit)} more"
    )
    return DeclineCause(DeclineReason.UNSECURED, text)


def pay_of(execution: Execution) -> Amount:
    """Returns the greatest pay that a lease may still get; the client's budget may cut it."""
    commit, most = execution.commit(), most_pay(execution.assignment.message)
    if commit is None:
        return most
    price = execution.assignment.message.price_per_hour
    return Amount(min(most, pay_for(commit.usage_ms, price, UNBOUNDED)))


def may_pay(lease: Execution, limits: Limits) -> Amount:
    return pay_ahead(lease.assignment.message, limits) if lease.is_rental else pay_of(lease)


def most_pay(assignment: Assignment) -> Amount:
    usage = Milliseconds(assignment.max_duration * 1000)
    return pay_for(usage, assignment.price_per_hour, UNBOUNDED)


def pay_ahead(assignment: Assignment, limits: Limits) -> Amount:
    """Of a rental, which ends before more than that is not covered."""
    usage = Milliseconds(limits.rental_ahead * 1000)
    return pay_for(usage, assignment.price_per_hour, UNBOUNDED)


def rented_pay(rental: Execution, usage: Milliseconds, limits: Limits) -> Amount:
    """What all its meters up to this one pay, by the coordinator's own function."""
    paid = rentals.paid_usage(usage, rental.spec.max_duration, limits)
    return pay_for(paid, rental.assignment.message.price_per_hour, UNBOUNDED)


def expected_pay(execution: Execution) -> Amount:
    """Returns what a lease is owed after its Verdict, until its receipt says it exactly."""
    phase = execution.phase
    assert isinstance(phase, Done), "a Verdict comes before pay"
    is_lost = phase.commit_set is None or is_denied(
        phase.verdict.message, execution.assignment_hash
    )
    return Amount(0) if is_lost else pay_of(execution)


def is_denied(verdict: Verdict, lease: Hash32) -> bool:
    """Whether a Verdict denies a lease its pay, whatever the receipt says."""
    is_outside = verdict.outcome is Outcome.ACCEPTED and lease not in verdict.group
    return lease in verdict.faulted or is_outside
