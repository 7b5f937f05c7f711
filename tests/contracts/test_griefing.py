"""Tests that no known attack costs honest accounts more than its attackers."""

import pytest

from contracts.griefing import ATTACKS


@pytest.mark.rule("5.140")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_its_attackers_more_than_honest_accounts(name: str) -> None:
    damage = ATTACKS[name]()
    assert damage.attackers and damage.honest
    assert damage.factor() <= 1, f"{name}: {damage.factor():.2f}"
