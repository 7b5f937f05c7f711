"""A coordinator that never answers, drips or falls silent: the client says what it waits for, ends
in time, and keeps its orders.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate.base.errors import UnavailableError
from quorate.client.base import coordinator_api as api_module
from quorate.client.base import timeouts
from quorate.client.base.coordinator_api import Api
from quorate.client.base.profile import Profile
from quorate.client.market import Market
from quorate.job.job import Job
from quorate_protocol.units import Hash32
from support.http_server import on_loopback
from support.markets.fake_market import FakeMarket

IMAGE = "docker.io/library/python@sha256:" + "ab" * 32
JOB = Job(image=IMAGE, command=["python"], max_price="0.50", max_duration="60s")
RUN = Hash32(b"\1" * 32)
DRIP = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the time limits fifty times shorter."""
    for name in (
        "NOTICE_SECONDS",
        "ANSWER_SECONDS",
        "STALL_SECONDS",
        "STORED_SECONDS",
        "STREAM_SECONDS",
    ):
        shorter = getattr(timeouts, name) / 50
        for module in (timeouts, api_module):
            monkeypatch.setattr(module, name, shorter, raising=False)
    monkeypatch.setattr("quorate.client.run.POLL_SECONDS", 0.05)
    monkeypatch.setattr("quorate.client.run.RECONNECT_SECONDS", (0.01,))
    monkeypatch.setattr("quorate.client.sent_orders.SUBMIT_SECONDS", 0.3)
    monkeypatch.setattr("quorate.client.sent_orders.SUBMIT_RETRY_SECONDS", 0.01)


def set_stall_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives data that keeps moving so long a pause that a busy machine makes none."""
    for module in (timeouts, api_module):
        monkeypatch.setattr(module, "STALL_SECONDS", 2.0)


@dataclass(slots=True)
class Stuck:
    """A server that answers nothing, or `head` and then a byte every 50 ms. It reads only the head
    of requests.
    """

    head: bytes = b""
    said: list[str] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    open_now: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.head)
            while not self.is_over.is_set():
                await asyncio.sleep(0.05)
                writer.write(b" " if self.head else b"")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.open_now -= 1
            writer.transport.abort()


@asynccontextmanager
async def stuck(head: bytes = b"") -> AsyncIterator[tuple[Stuck, Api]]:
    server = Stuck(head)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession() as session:
            yield server, Api(url, session, lambda: "", server.said.append)
    finally:
        listening.close()
        server.is_over.set()
        while server.open_now:
            await asyncio.sleep(0.01)


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * (1 << 20)


async def drain(source: AsyncIterator[object]) -> None:
    async for _ in source:
        pass


CALLS: dict[str, Callable[[Api, Path], Awaitable[object]]] = {
    "info": lambda api, folder: api.info(),
    "offers": lambda api, folder: api.offers(),
    "run": lambda api, folder: api.run(RUN),
    "stat": lambda api, folder: api.stat_content("bafy"),
    "receipt": lambda api, folder: api.receipt(RUN),
    "events": lambda api, folder: drain(api.events(RUN, 0)),
    "logs": lambda api, folder: drain(api.logs(RUN, False)),
    "download": lambda api, folder: api.get_content(
        "bafy", folder / "new", 1 << 30, lambda done: None
    ),
    "upload": lambda api, folder: api.put_content("bafy", endless, False),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_client_without_any_answer_is_told_and_ends(
    name: str, in_haste: None, tmp_path: Path
) -> None:
    async with stuck() as (server, api), asyncio.timeout(10):
        with pytest.raises(
            UnavailableError, match=r"does not answer \(no complete answer within 0\.6 s\).*quorate"
        ):
            await CALLS[name](api, tmp_path)
        assert (
            len(server.said) == 1
            and f"waiting for the coordinator {api.url}: no answer" in server.said[0]
        ), "told once, before the end"


@pytest.mark.parametrize("name", ["info", "receipt"])
async def test_a_dripping_answer_ends_in_an_error(
    name: str, in_haste: None, tmp_path: Path
) -> None:
    async with stuck(DRIP) as (_, api), asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="within"):
            await CALLS[name](api, tmp_path)


async def test_a_dripping_download_ends_in_an_error(
    in_haste: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stall_seconds(monkeypatch)
    monkeypatch.setattr(api_module, "TRIES", 1)
    async with stuck(DRIP) as (_, api), asyncio.timeout(60):
        with pytest.raises(UnavailableError, match="less than 2048 bytes a second"):
            await CALLS["download"](api, tmp_path)


async def test_a_slow_but_steady_upload_continues(
    in_haste: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole upload takes longer than any single limit, but data keeps moving."""
    set_stall_seconds(monkeypatch)
    taken, size = 0, 1 << 10

    async def take(request: web.Request) -> web.Response:
        nonlocal taken
        async for piece in request.content.iter_any():
            await asyncio.sleep(0.05)
            taken += len(piece)
        return web.json_response({"cid": "bafy", "bytes": taken})

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(60):
            while taken < number * size:  # else buffers take the upload at once
                await asyncio.sleep(0.01)
            yield b"x" * size

    app = web.Application(client_max_size=1 << 30)
    app.router.add_put("/v1/content", take)
    async with on_loopback(app) as url, aiohttp.ClientSession() as session, asyncio.timeout(60):
        await Api(url, session, lambda: "").put_content("bafy", pieces, False)


async def test_an_order_without_an_answer_stays_in_the_ledger(
    fake: FakeMarket, profile: Profile, in_haste: None
) -> None:
    notices: list[str] = []
    fake.is_silent = lambda request: request.path == "/v1/orders"
    async with Market(profile, notice=notices.append) as market, asyncio.timeout(20):
        with pytest.raises(UnavailableError):
            await market.submit(JOB)
        (entry,) = market.entries()
        assert any("may have taken" in notice and "`quorate ps`" in notice for notice in notices)
        fake.is_silent = None
        run = await market.run(entry.job_id)
        assert (await run.result()).is_success, (
            "it had been taken, and its result is checked and paid as any"
        )


async def test_a_silent_stream_ends_with_the_run(
    fake: FakeMarket, profile: Profile, in_haste: None
) -> None:
    fake.is_silent = lambda request: (
        request.path.startswith("/v1/runs/") and request.path.endswith(("/events", "/logs"))
    )
    async with Market(profile) as market, asyncio.timeout(20):
        run = await market.submit(JOB)
        await asyncio.wait_for(drain(run.events()), 10)
        await asyncio.wait_for(drain(run.logs(follow=True)), 10)
        assert (await run.result()).is_success
