"""A client's plan and `node check` say how many owners a pool has (PROTOCOL §5, small
markets).
"""

import pytest

from quorate_node.status.diagnostics import pool_result
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import CPUS as CPU_POOL
from quorate_protocol.messages.classes import Host, Pool
from quorate_protocol.messages.views import OfferView
from quorate_protocol.units import Address, Label, Signature
from support.markets.scripted_market import Market, Party
from support.messages import a_spec
from support.offers import a_slot, an_offer


def row(number: int, pool: Pool, price: int, host: Host) -> OfferView:
    offer = an_offer(Address(bytes([number]) * 20), 1, 1, [a_slot(pool, price, host=host)])
    return OfferView(offer, Signature(bytes(65)), 1, 0, 0, is_alive=True)


@pytest.mark.rule("5.43")
def test_node_check_says_how_many_owners_each_pool_and_the_hosts_class_have() -> None:
    mine, gpus = Host("x86_64", "v3"), Pool("RTX 4090")
    book = [row(1, gpus, 400_000, mine), row(2, gpus, 600_000, Host("x86_64", "v2"))]
    found = pool_result(book, gpus, mine, 3, DEVNET.name)
    assert found.text == (
        "RTX 4090: 3 staked owners in this pool on devnet, 1 on offer with this host's class, "
        "median price 0.50 USD/h"
    )
    found = pool_result(book, CPU_POOL, mine, 2, DEVNET.name)
    assert "0 on offer" in found.text and "no offer yet" in found.text
    assert found.text.endswith("only unverified jobs come before 3 owners have staked")


@pytest.mark.rule("5.43")
def test_plan_says_how_many_owners_the_class_has() -> None:
    for owners, rule in ((2, Label.UNVERIFIED), (3, Label.QUORUM_2)):
        market = Market(*[Party(number) for number in range(owners)])
        view = market.plan(a_spec("plan"), 200_000)
        assert (view.owners, view.rule) == (owners, rule)
        assert ("only 2 staked owners" in view.nearest) == (owners == 2)
