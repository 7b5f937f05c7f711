"""A client's plan and `node check` say how many owners a pool has (PROTOCOL §5, small
markets).
"""

import pytest
from aiohttp import ClientSession, web

from quorate_node.status.diagnostics import _market
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.units import Bps, Label, Seconds
from support.http_server import on_loopback
from support.markets.provider_world import COORDINATOR, STATEMENT_KEY
from support.markets.scripted_market import CPUS, Market, Party
from support.messages import a_spec


@pytest.mark.rule("5.43")
async def test_node_check_says_how_many_owners_the_class_has() -> None:
    async def offers(_: web.Request) -> web.Response:
        return web.json_response({"offers": []})

    app = web.Application()
    app.router.add_get("/v1/offers", offers)
    beacon = BeaconView("", bytes(96), Seconds(2), 1)
    info = InfoView(
        COORDINATOR, STATEMENT_KEY.address, 31337, "", {}, beacon, Bps(0), DEVNET.name, "0"
    )
    async with on_loopback(app) as url, ClientSession() as session:
        found = await _market(session, url, info, CPUS, 2)
    assert "2 staked owners in this pool on devnet" in found.text


@pytest.mark.rule("5.43")
def test_plan_says_how_many_owners_the_class_has() -> None:
    for owners, rule in ((2, Label.UNVERIFIED), (3, Label.QUORUM_2)):
        market = Market(*[Party(number) for number in range(owners)])
        view = market.plan(a_spec("plan"), 200_000)
        assert (view.owners, view.rule) == (owners, rule)
        assert ("only 2 staked owners" in view.nearest) == (owners == 2)
