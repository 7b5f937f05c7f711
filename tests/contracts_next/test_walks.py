"""Compares Escrow and Jobs with their model on random walks."""

from collections import Counter

import pytest

from contracts_next.machine import Walk

STEPS = 40


@pytest.mark.parametrize("seed", range(4))
def test_contracts_and_model_agree(seed: int) -> None:
    Walk(seed).run(STEPS)


@pytest.mark.slow
def test_contracts_and_model_agree_for_thousands_of_steps() -> None:
    reasons: Counter[tuple[str, str]] = Counter()
    for seed in range(20):
        walk = Walk(1000 + seed)
        walk.run(100)
        reasons += walk.reasons
    print(*sorted(reasons.items()), sep="\n")
