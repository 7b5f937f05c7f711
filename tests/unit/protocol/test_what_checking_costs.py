"""The benchmark of ways of checking, in small: the product's rule beside two executions."""

import pytest

from bench import audit, tolerances

JOBS, OWNERS = 6_000, 30


@pytest.mark.rule("5.3", "5.5")
@pytest.mark.parametrize("rule", ["eba_standard", "eba_no_stake"])
@pytest.mark.parametrize("kind", audit.CHEATERS)
def test_checking_by_trust_costs_little_and_no_lie_pays(rule: str, kind: str) -> None:
    ours = audit.play(rule, 0.1, kind, JOBS, OWNERS)
    twice = audit.play("fixed_2", 0.1, kind, JOBS, OWNERS)
    assert ours["executions"] < 1.3 and twice["executions"] >= 2
    assert ours["wrong"] <= 2e-3 and ours["profit_per_lie"] < 0


def test_colluders_move_no_more_tolerant_jobs_than_chance_lets_them() -> None:
    found = tolerances.measure(jobs=20, owners=10, colluding=2)
    assert found["wrong_share"] <= found["wrong_at_most"] and not found["faulted"]
    assert found["undecided"] < 5
