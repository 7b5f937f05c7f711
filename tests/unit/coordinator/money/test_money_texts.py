"""Tests what the operator's money commands say before they send."""

import pytest

from quorate_contracts.chain_cli.funding import accounts_of
from quorate_coordinator.base.operator_view import ChainView
from quorate_coordinator.chain.own_money import Holding, Retirement
from quorate_coordinator.cli.money_commands import before_everything, going, is_over
from quorate_coordinator.cli.status_command import bond_text, retiring_text
from quorate_protocol.limits import USD
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, UnixSeconds

ACCOUNT, POSTING = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
BOND = Amount(1000 * USD)


def test_the_announcement_names_all_that_is_sent() -> None:
    rows = [
        ("account", ACCOUNT, Holding(Amount(3974 * USD), 10**18)),
        ("posting key", POSTING, Holding(Amount(4000 * USD), 2 * 10**18)),
    ]
    told = going(rows, "ETH")
    assert told == (
        f"3974.00 USD and about 1 ETH of the account 0x{'aa' * 20} and "
        f"4000.00 USD and about 2 ETH of the posting key 0x{'bb' * 20}"
    )
    assert going(rows[:1], "") == f"3974.00 USD of the account 0x{'aa' * 20}"
    assert not going([("account", ACCOUNT, Holding(Amount(0), 0))], "ETH")


def test_everything_says_when_the_bond_is_due() -> None:
    def told(retired_at: int, bond: Amount, now: int) -> str:
        at, due = UnixSeconds(retired_at), UnixSeconds(retired_at + 180)
        return before_everything(Retirement(True, at, due, bond, UnixSeconds(now)))

    assert told(0, BOND, 1000) == "first `quorate coordinator retire`"
    assert "can be taken on 1970-01-01 00:19:40 UTC; repeat" in told(1000, BOND, 1100)
    assert "can be taken now" in told(1000, BOND, 1200)
    assert not told(1000, Amount(0), 1200)


def test_a_retired_folder_is_over_only_when_no_key_holds_anything() -> None:
    found = Retirement(True, UnixSeconds(1), UnixSeconds(2), Amount(0), UnixSeconds(3))
    none = Holding(Amount(0), 0)
    assert is_over(found, [none, none])
    assert not is_over(found, [none, Holding(Amount(0), 1)])
    assert not is_over(found, [Holding(Amount(1), 0), none])
    assert retiring_text(1000, 1180).endswith("can be taken from 1970-01-01 00:19:40 UTC on")
    assert not retiring_text(0, 0)


def test_a_mistyped_folder_to_fund_is_named() -> None:
    with pytest.raises(Refused, match="no folder devnet/mine with keys"):
        accounts_of(["devnet/mine"])


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
