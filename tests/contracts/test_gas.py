"""Tests the benchmark of gas in small, and that each mutant of a contract fits its source."""

from bench import gas
from contracts.mutation.run import FILES, every

SMALL = {"small": (100, 5, 2)}


def test_a_small_run_meets_the_goals_of_orders_and_cases() -> None:
    found = gas.measured(SMALL)
    assert not gas.above(found) and {"order_escrow_total", "jury7_as_sent"} <= set(found)
    weekly, daily = (found[f"{each}_credited_small"]["gas"] for each in ("weekly", "daily"))
    assert 0 < weekly < daily, "a payroll of a week is shared by more jobs"
    assert all(each["calldata"] > 0 for each in found.values())


MUTANTS_MIN = 310


def test_every_mutant_fits_its_source_once() -> None:
    made = every()
    assert {mutant.source for mutant in made} == set(FILES)
    assert len(made) >= MUTANTS_MIN
