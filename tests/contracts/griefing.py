"""The table of attacks: what each costs honest accounts, and what it costs its attackers.

`LIMITS` are those that no rule stops: they cost honest accounts more than their attackers.
docs/trust.md names each of them.
"""

from collections.abc import Callable
from functools import partial

from contracts import griefing_court, griefing_faults
from contracts.griefing_accounts import GAS_PRICES, Damage
from quorate_protocol.limits import USD

ATTACKS: dict[str, Callable[[], Damage]] = {
    "a false accusation": griefing_court.false_accusation,
    "void retries: inputs are withdrawn": griefing_court.void_retries,
    "stake frozen: nothing is opened, twice": griefing_court.stake_frozen,
    "4,000 USD of stake frozen, as above": partial(griefing_court.stake_frozen, 40),
    "one juror absent": partial(griefing_court.absent, 1, False),
    "four jurors absent": partial(griefing_court.absent, 4, False),
    "four jurors vote and do not reveal": partial(griefing_court.absent, 4, True),
    "two commits, proven": griefing_faults.equivocation,
    "a relayed registration that cannot pay": partial(griefing_faults.relayed_requests, "register"),
    "a relayed opening that cannot pay": partial(griefing_faults.relayed_requests, "open"),
}
LIMITS: dict[str, Callable[[], Damage]] = {
    "5,000 USD of stake frozen, as above": partial(griefing_court.stake_frozen, 50)
}


def row(name: str, damage: Damage) -> str:
    """Returns one line of the table: loss and cost in USD, and the factor, for each gas price."""
    cells = [
        f"{damage.loss(price) / USD:8.3f} {damage.cost(price) / USD:9.3f} "
        f"{damage.factor_at(price):6.2f}"
        for price in GAS_PRICES
    ]
    return f"{name:40} {' | '.join(cells)}"


def heading() -> str:
    """Returns the table's first line."""
    cells = [f"gas {price / USD:.2f}: loss, cost, ratio".rjust(25) for price in GAS_PRICES]
    return f"{'USD; gas by the million':40} {' | '.join(cells)}"
