"""Measures gas on a small market: orders, cases and single calls meet their goals."""

from bench import gas

SMALL = {"small": (100, 5, 2)}


def test_a_small_run_meets_the_goals_of_orders_and_cases() -> None:
    found = gas.measured(SMALL)
    assert not gas.above(found) and {"order_escrow_total", "jury7_as_sent"} <= set(found)
    weekly, daily = (found[f"{each}_credited_small"]["gas"] for each in ("weekly", "daily"))
    assert 0 < weekly < daily, "a payroll of a week is shared by more jobs"
    assert all(each["calldata"] > 0 for each in found.values())
