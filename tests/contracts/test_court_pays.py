"""Tests how much pay a case counts for an execution that it names (PROTOCOL §5).

It is usage at the signed price, within budget and maximum duration.
"""

import pytest

from contracts.market import key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.events import CaseOpened
from quorate_protocol.units import Amount, Milliseconds

ACCUSED = key("owner0").address
CLIENTS = [key("client0"), key("client1")]
RATE = 2_000_000  # price of an hour; the signed maximum duration is 30 seconds


@pytest.mark.rule("5.80")
@pytest.mark.parametrize(
    ("usage", "budget", "expected"),
    [
        (20_000, 10**6, 20_000 * RATE // 3_600_000),
        (30_000, 10**6, 30_000 * RATE // 3_600_000),
        (90_000, 10**6, 30_000 * RATE // 3_600_000),
        (20_000, 777, 777),
        (1, 10**6, 0),
    ],
)
def test_a_case_counts_at_most_the_budget_and_the_pay_of_the_maximum_duration(
    usage: int, budget: int, expected: int
) -> None:
    world = peopled()
    changes = {"usage_ms": Milliseconds(usage), "budget": Amount(budget)}
    trial = Trial(
        world, [world.execution(ACCUSED, client, b"lie", **changes) for client in CLIENTS]
    )
    event = next(each for each in trial.open().events if isinstance(each, CaseOpened))
    assert event.pays == (expected, expected, 0)[: len(event.pays)]
    assert trial.judged([TRUTH[:2]] * 7).slashed == 8 * 2 * expected
    money(world)
