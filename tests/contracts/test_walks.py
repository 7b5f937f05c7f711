"""Compares Escrow and Jobs with their model on random walks."""

from collections import Counter

import pytest

from contracts.tab_machine import Walk

STEPS, WALKS = 100, 20
# Some call of the long walks is refused for each
REASONS = {"amount", "closing", "copied", "count", "early", "expired", "fee", "funded", "late"}
REASONS |= {"limit", "old", "over", "providers", "shown", "signer", "stake", "time", "unknown"}
REASONS |= {"voucher", ""}


@pytest.mark.parametrize("seed", range(4))
def test_contracts_and_model_agree(seed: int) -> None:
    Walk(seed).run(40)


@pytest.mark.slow
def test_contracts_and_model_agree_for_thousands_of_steps() -> None:
    told: Counter[tuple[str, str]] = Counter()
    for seed in range(WALKS):
        walk = Walk(1000 + seed)
        walk.run(STEPS)
        told += walk.reasons
    unmet = REASONS - {reason for _, reason in told}
    assert not unmet, f"nothing was refused for these reasons: {unmet}"
    never = {name for name, _ in told} - {name for name, reason in told if not reason}
    assert not never, f"no such call was taken: {never}"
    print(f"{STEPS * WALKS} steps, {sum(told.values())} calls, every balance and refusal equal")
