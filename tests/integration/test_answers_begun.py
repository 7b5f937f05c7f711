"""An answer that has begun and cannot go on is cut: whoever reads it must not take what came, or a second answer inside it, for all."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http_answers import Busy, failures, mark_started


@pytest.mark.parametrize("error", [Unavailable("no disk"), Refused(Code.UNKNOWN, "gone"), Busy("later", 1), KeyError("x")], ids=repr)
async def test_it_is_cut(error: Exception) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"the first half")
        raise error

    app = web.Application(middlewares=[failures])
    app.on_response_prepare.append(mark_started)
    app.router.add_get("/", answer)
    async with TestClient(TestServer(app)) as client, client.get("/") as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
