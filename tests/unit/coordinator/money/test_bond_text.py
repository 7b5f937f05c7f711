"""What `coordinator status` says of a bond of which a part was taken."""

import pytest

from quorate_coordinator.commands.status_command import bond_text
from quorate_coordinator.monitoring.operator_view import ChainView
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, Amount

NONE = Amount(0)


@pytest.mark.parametrize(
    ("bond", "lacks", "told"),
    [
        (1_000, 0, "1000.00 USD"),
        (600, 400, "600.00 USD, 400.00 were taken: `quorate coordinator top-up` restores them"),
        (499, 501, "less than half is there, so no epoch is posted: `quorate coordinator top-up`"),
    ],
)
def test_a_bond_of_which_a_part_was_taken_names_the_remedy(
    bond: int, lacks: int, told: str
) -> None:
    money = (Amount(bond * USD), 0, NONE, ZERO_ADDRESS, NONE, 0, ZERO_ADDRESS, NONE)
    text = bond_text(ChainView(1, *money, 0, 0, None, "ETH", Amount(lacks * USD)))
    assert told in text
