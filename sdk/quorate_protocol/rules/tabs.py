"""Tabs: who may still be owed how much, and when money moves on chain (PROTOCOL §6).

A tab is one-directional: a payer locks money for a payee, and the payer's cumulative vouchers and
payrolls pay out of it. A coordinator is the payee of its clients' tabs, and the payer of its
providers' tabs. What it locks for a provider is a guarantee: its payrolls come from its balance.

Everything here is a function of what the chain shows in final blocks and of what was signed.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from quorate_protocol.limits import DAY, USD, Limits
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds

TRUST_DEFAULT = Amount(USD)  # what an owner works for beyond the guarantee
GUARANTEE_FIRST_SHARE = 20  # the first guarantee is a 20th of the stake of the open slots
GUARANTEE_DAYS = 3  # pay of one day is unpaid, of one day held, and of one day under way
GUARANTEE_STEP = 2  # raised when less than a half is there, so that it costs few transactions
PAY_SOON = Amount(5 * USD)  # from so much unpaid pay on, a payroll comes each `pay_every`
PAY_PERIODS = 7  # anything else is paid after so many of these
PAY_LEAST = Amount(USD // 20)  # less than the gas of an entry is not paid yet
REDEEM_LEAST = Amount(USD)  # what a provider redeems by itself, because the payroll left it
LIMIT_DAYS = 30  # of payrolls, from which a limit is suggested
LIMIT_MULTIPLE = 2
LIMIT_LEAST = Amount(20 * USD)


class Tab(Struct, frozen=True):
    """A tab as final blocks show it."""

    locked: Amount = Amount(0)  # put in so far, less what went back
    paid: Amount = Amount(0)  # cumulative: by vouchers and payrolls
    closes_at: UnixSeconds = UnixSeconds(0)  # 0 = open

    @property
    def free(self) -> Amount:
        return Amount(self.locked - self.paid)


class Owed(Struct, frozen=True):
    """What one coordinator owes a provider, or may come to owe it."""

    vouched: Amount = Amount(0)  # cumulative sum of its newest voucher
    held: Amount = Amount(0)  # pay that a later verdict may still take back; no voucher covers it
    open: Amount = Amount(0)  # the greatest pay of all leases under way


# ------------------------------------------------------------------------------------- the provider


def exposure(tab: Tab, owed: Owed) -> Amount:
    """Returns what a provider would lose if its coordinator vanished now, before the guarantee."""
    return Amount(max(0, owed.vouched - tab.paid) + owed.held + owed.open)


def accept_limit(tab: Tab, owed: Owed, trust: Amount) -> Amount:
    """Returns the greatest pay of a further lease that the provider may accept.

    `trust` is the owner's own setting: what it works for beyond the coordinator's guarantee. A
    closing tab guarantees nothing, because its payer takes the rest when it ends.
    """
    guaranteed = tab.free if not tab.closes_at else 0
    return Amount(max(0, guaranteed + trust - exposure(tab, owed)))


# ---------------------------------------------------------------------------------- the coordinator


def guarantee(daily_pay: Amount, stake: Amount) -> Amount:
    """Returns what a coordinator keeps free in a provider's tab.

    `daily_pay` is the provider's average pay of a day here. Without stake there is no guarantee:
    otherwise accounts that cost nothing could lock a coordinator's whole balance.
    """
    if not stake:
        return Amount(0)
    return Amount(max(stake // GUARANTEE_FIRST_SHARE, daily_pay * GUARANTEE_DAYS))


def lock_due(tab: Tab, unpaid: Amount, wanted: Amount) -> Amount:
    """Returns what to lock now so that `wanted` is free beside unpaid pay; 0 = wait."""
    if tab.closes_at:
        return Amount(0)
    left = tab.free - unpaid
    return Amount(wanted - left) if left * GUARANTEE_STEP < wanted else Amount(0)


class Pay(Struct, frozen=True):
    """One entry of a payroll: the payee and the cumulative sum that it is paid then."""

    payee: Address
    cumulative: Amount


def is_pay_due(unpaid: Amount, waited: Seconds, limits: Limits) -> bool:
    """Whether a provider's pay goes into the next payroll. `waited`: since its last one."""
    if unpaid < PAY_LEAST and limits.pay_every >= DAY:
        return False
    periods = 1 if unpaid >= PAY_SOON or limits.pay_every < DAY else PAY_PERIODS
    return unpaid > 0 and waited >= limits.pay_every * periods


def payroll(
    owed: Mapping[Address, tuple[Amount, Amount]], available: Amount, most: int
) -> tuple[Pay, ...]:
    """Builds a payroll. `owed`: (vouched, paid), both cumulative, of the providers that are due.

    `available` is the balance, or what the day's limit leaves of it, and `most` the count of
    entries. The greatest debts come first, and the last one may be paid in part.
    """
    pays = []
    by_debt = sorted(owed.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
    for payee, (vouched, paid) in by_debt[:most]:
        amount = min(vouched - paid, available)
        if amount <= 0:
            break
        available = Amount(available - amount)
        pays.append(Pay(payee, Amount(paid + amount)))
    return tuple(sorted(pays, key=lambda pay: pay.payee))


def limit_suggested(days: Sequence[Amount]) -> Amount:
    """Returns the day's limit to suggest for a posting key: twice the largest of the last 30 days.
    A thief of the key moves at most the limits of two days, around a midnight.
    """
    return Amount(max(LIMIT_LEAST, LIMIT_MULTIPLE * max(days[-LIMIT_DAYS:], default=0)))


# ----------------------------------------------------------------------------------------- vouchers


class Held(Struct, frozen=True):
    """A voucher that its payee has not redeemed whole."""

    cumulative: Amount
    since: UnixSeconds  # when the payee first had a voucher above what the tab paid
    key_ends: UnixSeconds = UnixSeconds(0)  # last second of its session or key; 0 = none known


def is_redeem_due(tab: Tab, held: Held, at: UnixSeconds, least: Amount, limits: Limits) -> bool:
    """Whether the payee sends its voucher to the chain now.

    That is so after a week, and at once when a clock runs against the voucher: its tab closes, or
    its key has ended. `least` is what the payee bothers to redeem without such a clock.
    """
    unpaid = min(held.cumulative, tab.locked) - tab.paid
    if unpaid <= 0:
        return False
    if tab.closes_at or (held.key_ends and at > held.key_ends):
        return True
    return unpaid >= least and at >= held.since + limits.redeem_every


def counts_until(key_ends: UnixSeconds, is_coordinator: bool, limits: Limits) -> UnixSeconds:
    """The last second in which the chain takes a voucher of a session or key that ends."""
    after = limits.coordinator_close if is_coordinator else limits.client_close
    return UnixSeconds(key_ends + after)
