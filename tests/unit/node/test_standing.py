"""Tests that the daemon tells its owner when a coordinator takes the provider off offer."""

import logging

import pytest

from quorate_node.core.provider_core import ProviderCore
from quorate_node.ops.offer_state import why_nothing_is_on_offer
from quorate_node.ops.standing import EVERYWHERE, SOMEWHERE, Standing
from quorate_protocol.messages.views import ProviderView, ReputationView
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Amount, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import VirtualClock
from quorate_runtime.process.health import Board
from support.markets.provider_world import NOW, PROVIDER, make_terms

GOOD = ProviderView(
    PROVIDER,
    True,
    0,
    9,
    Amount(0),
    Amount(0),
    Amount(0),
    UnixSeconds(0),
    UnixSeconds(0),
    1,
    20,
    ReputationView(0, 0, 0, 0, 0, 0, ()),
)
FIRST, SECOND = Address(b"\x01" * 20), Address(b"\x02" * 20)


class Answering:
    """A coordinator that answers with `record`, or is away."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.record: ProviderView | None = GOOD

    async def own_record(self) -> ProviderView:
        if self.record is None:
            raise Unavailable("away", 1.0)
        return self.record


@pytest.mark.rule("4.70")
async def test_an_owner_sees_that_its_provider_is_off_offer_why_and_until_when(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    board, clock = Board(), VirtualClock(NOW)
    first, second = Answering("http://first"), Answering("http://second")
    standing = Standing({FIRST: first, SECOND: second}, board, clock, 1.0)
    core = ProviderCore(make_terms())

    def not_on_offer() -> str:
        return why_nothing_is_on_offer(core, board.problems(), True, False, is_connected=True)

    await standing.look()
    assert not board.problems() and not not_on_offer() and not caplog.messages
    off = replace(GOOD, off_offer_until=UnixSeconds(NOW + 7200), given_up=0, answers=0)
    first.record = off
    await standing.look()
    [some] = board.problems()
    assert (
        some.name == SOMEWHERE and "http://first: off offer until 2023-11-15 00:30 UTC" in some.text
    )
    assert not not_on_offer(), "the second one gives work"
    second.record = replace(GOOD, barred_until=UnixSeconds(NOW + 60), strikes=3)
    await standing.look()
    [all_of_them] = board.problems()
    assert all_of_them.name == EVERYWHERE and "more than a fifth" in all_of_them.text
    assert "barred for faults until" in all_of_them.text
    assert not_on_offer().startswith("off offer: http://first: off offer until")
    first.record = None
    await standing.look()
    assert board.has(EVERYWHERE), "one that is away has not changed its mind"
    first.record, second.record = GOOD, GOOD
    await standing.look()
    assert not board.problems()
    told = [message.split(" ", 1)[1] for message in caplog.messages]
    assert len(told) == 4 and told[0].startswith("gives this provider no work: off offer until")
    assert told[2:] == ["gives this provider work again"] * 2
