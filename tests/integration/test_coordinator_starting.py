"""A coordinator that replays its journal says so, instead of answering from a moment in the past."""

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quorate_coordinator.api.early import refuse_early
from quorate_runtime.http_answers import failures


async def test_only_health_is_answered_before_it_is_ready() -> None:
    ready: list[bool] = []
    app = web.Application(middlewares=[failures, refuse_early(lambda: bool(ready))])

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    for path in ("/v1/health", "/v1/runs/0x12", "/v1/peers"):
        app.router.add_get(path, answer)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/health")).status == 200
        for path in ("/v1/runs/0x12", "/v1/peers"):
            early = await client.get(path)
            assert early.status == 503 and (await early.json())["code"] == "unavailable" and early.headers["Retry-After"] == "1"
        ready.append(True)
        for path in ("/v1/runs/0x12", "/v1/peers"):
            assert (await client.get(path)).status == 200
