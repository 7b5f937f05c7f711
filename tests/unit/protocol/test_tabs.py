"""Tests of what may be owed over tabs, and when money moves on chain (PROTOCOL §6)."""

import pytest

from quorate_protocol.limits import DAY, DEVNET, MAINNET, USD
from quorate_protocol.rules import tabs
from quorate_protocol.rules.tabs import Held, Owed, Pay, Tab
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds

NOW = UnixSeconds(1_800_000_000)
WEEK = 7 * DAY


def money(units: int) -> Amount:
    return Amount(units)


@pytest.mark.parametrize(
    ("locked", "paid", "closes_at", "vouched", "held", "under_way", "trust", "most"),
    [
        (100, 0, 0, 0, 0, 0, 0, 100),
        (100, 40, 0, 40, 0, 0, 0, 60),  # a voucher that was paid is owed no more
        (100, 0, 0, 40, 0, 0, 0, 60),
        (100, 40, 0, 70, 20, 10, 0, 0),
        (100, 40, 0, 70, 20, 11, 1, 0),
        (100, 40, 0, 70, 20, 9, 0, 1),
        (0, 0, 0, 0, 0, 0, 10, 10),  # no guarantee: the owner's own trust
        (0, 0, 0, 8, 5, 0, 10, 0),
        (100, 0, 1, 0, 0, 0, 3, 3),  # a closing tab guarantees nothing
        (100, 90, 0, 80, 0, 0, 0, 10),  # a payroll ran ahead of the vouchers
    ],
)
def test_a_provider_accepts_only_what_guarantee_and_trust_cover(
    locked: int,
    paid: int,
    closes_at: int,
    vouched: int,
    held: int,
    under_way: int,
    trust: int,
    most: int,
) -> None:
    tab = Tab(money(locked), money(paid), UnixSeconds(closes_at))
    owed = Owed(money(vouched), money(held), money(under_way))
    assert tabs.accept_limit(tab, owed, money(trust)) == most


@pytest.mark.parametrize(
    ("daily", "stake", "wanted"),
    [
        (0, 100 * USD, 5 * USD),
        (USD, 100 * USD, 5 * USD),
        (32 * USD, 100 * USD, 96 * USD),
        (32 * USD, 0, 0),  # accounts without stake lock none of the coordinator's money
    ],
)
def test_a_guarantee_follows_pay_and_stake(daily: int, stake: int, wanted: int) -> None:
    assert tabs.guarantee(money(daily), money(stake)) == wanted


@pytest.mark.parametrize(
    ("locked", "paid", "closes_at", "unpaid", "wanted", "lock"),
    [
        (0, 0, 0, 0, 50, 50),
        (50, 0, 0, 0, 50, 0),
        (50, 0, 0, 25, 50, 0),  # a half is left: no transaction yet
        (50, 0, 0, 26, 50, 26),
        (50, 30, 0, 0, 50, 30),
        (50, 0, 9, 0, 90, 0),
    ],
)
def test_a_guarantee_is_raised_when_less_than_a_half_is_left(
    locked: int, paid: int, closes_at: int, unpaid: int, wanted: int, lock: int
) -> None:
    tab = Tab(money(locked), money(paid), UnixSeconds(closes_at))
    assert tabs.lock_due(tab, money(unpaid), money(wanted)) == lock


@pytest.mark.parametrize(
    ("unpaid", "waited", "is_due"),
    [
        (5 * USD, DAY, True),
        (5 * USD, DAY - 1, False),
        (5 * USD - 1, DAY, False),
        (5 * USD - 1, WEEK, True),
        (USD // 20, WEEK, True),
        (USD // 20 - 1, WEEK, False),  # its gas would cost more
        (0, WEEK, False),
    ],
)
def test_pay_goes_out_daily_when_large_and_weekly_when_small(
    unpaid: int, waited: int, is_due: bool
) -> None:
    assert tabs.is_pay_due(money(unpaid), Seconds(waited), MAINNET) is is_due


def test_a_devnet_pays_everything_every_period() -> None:
    assert tabs.is_pay_due(money(1), DEVNET.pay_every, DEVNET)
    assert not tabs.is_pay_due(money(0), DEVNET.pay_every, DEVNET)
    assert not tabs.is_pay_due(money(1), Seconds(DEVNET.pay_every - 1), DEVNET)


def test_a_payroll_pays_the_greatest_debts_as_far_as_the_money_goes() -> None:
    one, two, three = (Address(bytes([number]) * 20) for number in (1, 2, 3))
    owed = {one: (money(30), money(10)), two: (money(90), money(60)), three: (money(5), money(5))}
    all_paid = (Pay(one, money(30)), Pay(two, money(90)))
    assert tabs.payroll(owed, money(50), 256) == all_paid
    assert tabs.payroll(owed, money(49), 256) == (Pay(one, money(29)), Pay(two, money(90)))
    assert tabs.payroll(owed, money(50), 1) == (Pay(two, money(90)),)
    assert tabs.payroll(owed, money(0), 256) == ()
    assert tabs.payroll({one: (money(10), money(30))}, money(50), 256) == ()


def test_the_limit_suggested_is_twice_the_largest_day() -> None:
    assert tabs.limit_suggested([]) == 20 * USD
    assert tabs.limit_suggested([money(30 * USD), money(7)]) == 60 * USD
    assert tabs.limit_suggested([money(900 * USD)] + [money(USD)] * 30) == 20 * USD


@pytest.mark.parametrize(
    ("cumulative", "locked", "paid", "closes_at", "age", "key_ends", "is_due"),
    [
        (2 * USD, 9 * USD, 0, 0, WEEK, 0, True),
        (2 * USD, 9 * USD, 0, 0, WEEK - 1, 0, False),
        (USD - 1, 9 * USD, 0, 0, WEEK, 0, False),
        (2 * USD, 9 * USD, 2 * USD, 0, WEEK, 0, False),
        (2 * USD, 0, 0, 0, WEEK, 0, False),  # nothing is locked: it pays nothing
        (2 * USD, USD - 1, 0, 0, WEEK, 0, False),
        (1, USD, 0, 5, 0, 0, True),  # the tab closes
        (1, USD, 0, 0, 0, NOW - 1, True),  # its session or key has ended
        (1, USD, 0, 0, 0, NOW, False),
    ],
)
def test_a_voucher_is_redeemed_after_a_week_or_when_a_clock_runs_against_it(
    cumulative: int, locked: int, paid: int, closes_at: int, age: int, key_ends: int, is_due: bool
) -> None:
    tab = Tab(money(locked), money(paid), UnixSeconds(closes_at))
    held = Held(money(cumulative), UnixSeconds(NOW - age), UnixSeconds(key_ends))
    assert tabs.is_redeem_due(tab, held, NOW, tabs.REDEEM_LEAST, MAINNET) is is_due


def test_a_voucher_outlives_its_key_by_the_closing_time_of_its_tab() -> None:
    assert tabs.counts_until(NOW, False, MAINNET) == NOW + 7 * DAY
    assert tabs.counts_until(NOW, True, MAINNET) == NOW + 14 * DAY
