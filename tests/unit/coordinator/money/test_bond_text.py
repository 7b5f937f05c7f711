"""What `coordinator status` says of a bond of which a part was burned."""

import pytest

from quorate_coordinator.base.operator_view import ChainView
from quorate_coordinator.cli.status_command import bond_text
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, Amount

NONE = Amount(0)


@pytest.mark.parametrize(
    ("bond", "lacks", "told"),
    [
        (1_000, 0, "1000.00 USD"),
        (990, 10, "990.00 USD, 10.00 were burned: `quorate coordinator top-up` restores them"),
    ],
)
def test_a_bond_of_which_a_part_was_burned_names_the_remedy(
    bond: int, lacks: int, told: str
) -> None:
    account, posting = (ZERO_ADDRESS, NONE, 0), (ZERO_ADDRESS, NONE, 0)
    view = ChainView(
        1, Amount(bond * USD), 0, *account, *posting, 0, None, "ETH", Amount(lacks * USD)
    )
    assert bond_text(view) == told
