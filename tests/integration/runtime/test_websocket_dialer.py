"""The dialer reconnects after bounded pauses, and raises its handler's bugs."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.peers.websocket_peers import WebSocketDialer
from support.peer_sites import (
    ADA,
    EVE,
    SERVER,
    SIGNERS,
    TIMEOUT,
    EchoHandler,
    Site,
    eventually,
    running,
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(EchoHandler(b"server"))
    await site.start()
    yield site
    await site.stop()


async def test_dialer_reconnects_after_the_server_was_away(site: Site) -> None:
    ada = site.dialer(ADA, EchoHandler(b"ada"))
    async with running(ada):
        await eventually(lambda: bool(ada.connected()))
        asked = asyncio.create_task(ada.request(SERVER, b"wait", Seconds(30)))
        await eventually(lambda: len(site.handler.seen) == 1)
        await site.stop()
        with pytest.raises(Unavailable, match="went away"):
            await asked
        await eventually(lambda: not ada.connected())
        await site.start()
        await eventually(lambda: bool(ada.connected()))
        assert await ada.request(SERVER, b"again", TIMEOUT) == b"server:again"


async def test_dialer_raises_the_bug_of_its_handler(site: Site) -> None:
    ada = site.dialer(ADA, EchoHandler(b"ada"))
    task = asyncio.create_task(ada.run())
    await eventually(lambda: site.peers.connected() == {ADA})
    with pytest.raises(Unavailable):
        await site.peers.request(ADA, b"bug", TIMEOUT)
    with pytest.raises(ExceptionGroup) as ended:
        await task
    assert ended.group_contains(ZeroDivisionError)


async def test_refused_dialer_tries_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    eve = site.dialer(EVE, EchoHandler(b"eve"))
    with caplog.at_level(logging.INFO):
        async with running(eve):
            await eventually(lambda: caplog.text.count("wrong-signer") >= 3)
    assert not eve.connected() and not site.peers.connected()


@dataclass
class ImpatientClock:
    """A clock that does not wait. It keeps the lengths of the requested pauses."""

    pauses: list[float] = field(default_factory=list)

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.001)


async def test_pauses_between_tries_are_at_most_retry_max(site: Site) -> None:
    """A coordinator that restarts forgets a provider whose next heartbeat comes too late."""
    clock = ImpatientClock()
    eve = WebSocketDialer(
        site.url,
        SERVER,
        EVE,
        SIGNERS[EVE],
        EchoHandler(b"eve").handle,
        clock,
        lambda: 0.5,
        retry_max=3.0,
    )
    async with running(eve):
        await eventually(lambda: len(clock.pauses) >= 7)
    assert clock.pauses[:7] == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0, 3.0]
