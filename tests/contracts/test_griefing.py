"""Tests that no known attack costs honest accounts more than its attackers, but for the limits."""

import pytest

from contracts.griefing import ATTACKS, LIMITS


@pytest.mark.rule("5.140")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_its_attackers_more_than_honest_accounts(name: str) -> None:
    damage = ATTACKS[name]()
    assert damage.attackers and damage.honest
    assert damage.factor() <= 1, f"{name}: {damage.factor():.2f}"


@pytest.mark.rule("5.140")
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_costs_honest_accounts_more_than_its_attackers(name: str) -> None:
    """A rule that ends one of them moves it to the attacks, and out of docs/trust.md."""
    assert LIMITS[name]().factor() > 1
