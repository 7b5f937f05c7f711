"""The benchmark of ways of checking, in small: the product's rule beside two executions."""

import pytest

from bench import audit

JOBS, OWNERS = 6_000, 30


@pytest.mark.rule("5.3")
@pytest.mark.parametrize("kind", audit.CHEATERS)
def test_checking_by_trust_costs_less_than_two_executions_and_lets_few_lies_pass(kind: str) -> None:
    ours = audit.play("eba_standard", 0.1, kind, JOBS, OWNERS)
    twice = audit.play("fixed_2", 0.1, kind, JOBS, OWNERS)
    assert ours["steady_executions"] < 1.9 <= twice["executions"]
    assert ours["wrong"] <= 2e-3
