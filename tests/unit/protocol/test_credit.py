"""Tests how far client and coordinator trust each other with money."""

import pytest

from quorate_protocol.limits import MAINNET, USD
from quorate_protocol.rules.credit import lead_allowed, voucher_for, voucher_needed
from quorate_protocol.units import Amount


@pytest.mark.rule("4.75")
@pytest.mark.parametrize(
    ("setting", "delivered", "lead"),
    [
        (None, 0, USD),
        (None, 10 * USD + 9, USD),
        (None, 10 * USD + 10, USD + 1),
        (0, 90 * USD, 0),
        (5 * USD, 0, 5 * USD),
    ],
)
def test_the_lead_grows_with_what_was_delivered_unless_it_is_set(
    setting: int | None, delivered: int, lead: int
) -> None:
    chosen = None if setting is None else Amount(setting)
    assert lead_allowed(chosen, Amount(delivered), MAINNET.lead_min) == lead


@pytest.mark.rule("4.76", "4.77")
@pytest.mark.parametrize(
    ("charged", "reserved", "fees_paid", "needed"),
    [(0, 30, 0, 30), (100, 30, 0, 130), (100, 30, 4, 126), (1, 2, 50, 0)],
)
def test_a_voucher_must_cover_all_but_the_fees_that_were_paid(
    charged: int, reserved: int, fees_paid: int, needed: int
) -> None:
    assert voucher_needed(Amount(charged), Amount(reserved), Amount(fees_paid)) == needed


@pytest.mark.rule("2.4", "4.75")
@pytest.mark.parametrize(
    ("promised", "signed", "allocation", "limit", "following"),
    [
        (30, 0, 10**6, 10**6, 130),
        (90, 0, 10**6, 10**6, 150),  # no more than the lead of 50
        (30, 140, 10**6, 10**6, 140),  # never less than before
        (30, 0, 120, 10**6, 120),  # no more ahead than the allocation
        (30, 0, 90, 10**6, 100),  # but all that is charged
        (30, 0, 10**6, 95, 95),  # nothing above the session
    ],
)
def test_a_voucher_covers_charges_and_what_may_come_within_the_lead(
    promised: int, signed: int, allocation: int, limit: int, following: int
) -> None:
    sums = Amount(100), Amount(promised), Amount(50), Amount(signed)
    assert voucher_for(*sums, Amount(allocation), Amount(limit)) == following
