"""Tests how much pay a case counts for an execution that it names (PROTOCOL §5).

It is the longest run at the signed price, within the budget, and never what the provider signed as
its usage.
"""

import pytest

from contracts.market import key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.events import CaseOpened
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Amount, Milliseconds, Price

ACCUSED = key("owner0").address
CLIENTS = [key("client0"), key("client1")]
RATE = 240_000_000  # price of an hour; the signed maximum duration is 30 seconds
LONGEST = 30 * RATE // 3600
FLOOR = DEVNET.jury_pay_min


@pytest.mark.rule("5.80")
@pytest.mark.parametrize(
    ("usage", "budget", "expected"),
    [
        (20_000, 10**7, LONGEST),
        (90_000, 10**7, LONGEST),
        (0, 10**7, LONGEST),
        (20_000, 1_000_000, 1_000_000),
        (20_000, 777, FLOOR),
    ],
)
def test_a_case_counts_the_longest_run_within_the_budget(
    usage: int, budget: int, expected: int
) -> None:
    world = peopled()
    changes = {
        "usage_ms": Milliseconds(usage),
        "budget": Amount(budget),
        "price_per_hour": Price(RATE),
        "max_price_per_hour": Price(RATE),
    }
    trial = Trial(
        world, [world.execution(ACCUSED, client, b"lie", **changes) for client in CLIENTS]
    )
    event = next(each for each in trial.open().events if isinstance(each, CaseOpened))
    assert event.pays == (expected, expected, 0)
    pays = 7 * (2 * expected + DEVNET.jury_gas_fee) + DEVNET.jury_gas_fee
    assert trial.judged([TRUTH[:2]] * 7).slashed == max(8 * 2 * expected, pays)
    money(world)
