"""Tests two conditions of an accepted Order (PROTOCOL §2, §3 Ack).

The coordinator's view of the chain is at most ten minutes old. A class chosen for "any class" has
many owners.
"""

import pytest

from quorate_protocol.limits import DAY, DEVNET
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32, Price, Seconds
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import CPUS, Market, Party
from support.messages import a_spec
from support.refusals import refuses


@pytest.mark.rule("3.28")
def test_the_block_of_an_ack_is_at_most_ten_minutes_old() -> None:
    market = Market(*[Party(number) for number in range(3)])
    market.hears_blocks = False
    heard = market.core.state.own.block_time
    while market.at < heard + DEVNET.ack_age_max:
        market.beat()
    known = market.order(0, 1)
    market.beat()
    with refuses(Code.BUSY, "chain"):
        market.order(0, 2)
    market.until_decided(known)
    market.hears_blocks = True
    market.until_decided(market.order(0, 2))


@pytest.mark.rule("2.25", "3.10")
def test_an_order_for_any_class_gets_one_with_many_long_registered_owners() -> None:
    market = LargeMarket()
    age = 14 * DAY
    rules = market.core.rules
    market.core.rules = replace(
        rules, limits=replace(rules.limits, class_owners_min_any=9, class_owner_age=Seconds(age))
    )
    with pytest.raises(Refused) as refused:
        market.order(0, 1)
    assert refused.value.code is Code.TOO_FEW_OWNERS and CPUS.id().hex() in refused.value.detail
    nearest = [
        market.plan(a_spec("asked"), 10**6, pool=named).nearest
        for named in (ZERO_HASH, CPUS.id(), Hash32(b"\1" * 32))
    ]
    assert "names no class needs 9" in nearest[0] and nearest[1] == ""
    assert nearest[2].startswith("no live offer of pool 0x0101")
    market.order(0, 2, pool=CPUS.id())
    market.core.rules = replace(
        rules, limits=replace(rules.limits, class_owners_min_any=9, class_owner_age=Seconds(0))
    )
    market.order(0, 3)
    market.core.rules = replace(rules, limits=replace(rules.limits, class_owners_min_any=10))
    with pytest.raises(Refused):
        market.order(0, 4)


def test_a_plan_and_the_refusal_of_its_order_have_the_same_words() -> None:
    market = Market(*[Party(number) for number in range(3)])
    for changes in ({"max_price_per_hour": Price(1)}, {"pool": Hash32(b"\1" * 32)}):
        view = market.plan(a_spec("job"), 10**6, **changes)
        with pytest.raises(Refused) as refused:
            market.order(0, 1, **changes)
        assert refused.value.code is Code.NO_OFFER and refused.value.detail == view.nearest
