"""The listener cuts the connection if an answer that has begun cannot go on.

Otherwise the client would take the part that came, or a second answer inside it, for the whole.
"""

import logging

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.actor.journal_port import JournalFailed
from quorate_runtime.http.error_responses import Busy, failures, mark_started

FULL = JournalFailed("journal: the disk is full. Free space, then start again.")


@pytest.mark.parametrize(
    "error",
    [Unavailable("no disk"), Refused(Code.UNKNOWN, "gone"), Busy("later", 1), FULL, KeyError("x")],
    ids=repr,
)
async def test_answer_that_cannot_go_on_is_cut(error: Exception) -> None:
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


async def test_full_journal_is_reported_as_an_end_and_not_as_a_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        raise FULL

    app = web.Application(middlewares=[failures])
    app.router.add_get("/", answer)
    with caplog.at_level(logging.ERROR):
        async with TestClient(TestServer(app)) as client, client.get("/") as response:
            assert response.status == 503 and "stopping" in await response.text()
    assert "Free space, then start again" in caplog.text and not any(
        record.exc_info for record in caplog.records
    )
