"""What one WebSocket connection may do: malformed messages, floods, silent readers, bugs."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.peers.channel import INFLIGHT_MAX, Kind
from quorate_runtime.peers.websocket_peers import Welcome
from support.peer_sites import (
    ADA,
    BOB,
    SERVER,
    TIMEOUT,
    EchoHandler,
    Site,
    close_of,
    eventually,
    raw_connection,
    running,
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(EchoHandler(b"server"))
    await site.start()
    yield site
    await site.stop()


def refusal_with_unknown_code() -> bytes:
    return bytes([Kind.REFUSED]) + bytes(16) + b'{"code":"no-such-code","detail":""}'


MALFORMED = [
    b"",
    b"\1",
    bytes([0]) + bytes(16),
    bytes([9]) + bytes(40),
    b"\1" + bytes(16 + FRAME_BYTES_MAX + 1),
    refusal_with_unknown_code(),
]


@pytest.mark.parametrize(
    "message", MALFORMED, ids=["empty", "short", "kind 0", "kind 9", "oversize", "bad refusal"]
)
async def test_malformed_message_ends_only_its_connection(site: Site, message: bytes) -> None:
    handler = EchoHandler(b"bob")
    bob = site.dialer(BOB, handler)
    async with running(bob), raw_connection(site, ADA) as ws:
        await eventually(lambda: site.peers.connected() == {ADA, BOB})
        assert canonical.decode(Welcome, (await ws.receive_str()).encode()).account == SERVER
        await ws.send_bytes(message)
        assert (await ws.receive(timeout=5)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )
        await eventually(lambda: site.peers.connected() == {BOB})
        assert await bob.request(SERVER, b"fine", TIMEOUT) == b"server:fine"


async def test_unexpected_answer_is_ignored_and_too_many_requests_are_unavailable(
    site: Site,
) -> None:
    async with raw_connection(site, ADA) as ws:
        await ws.receive_str()
        await ws.send_bytes(bytes([Kind.ANSWER]) + bytes(16) + b"no request")
        for number in range(INFLIGHT_MAX + 1):
            await ws.send_bytes(bytes([Kind.REQUEST]) + number.to_bytes(16, "big") + b"wait")
        refused = (await ws.receive(timeout=5)).data
        assert (
            refused[0] == Kind.UNAVAILABLE and int.from_bytes(refused[1:17], "big") == INFLIGHT_MAX
        )
        site.handler.released.set()
        answers = [(await ws.receive(timeout=5)).data for _ in range(INFLIGHT_MAX)]
        assert {answer[0] for answer in answers} == {Kind.ANSWER} and len(
            {answer[1:17] for answer in answers}
        ) == INFLIGHT_MAX


async def test_dialer_has_a_bounded_number_of_open_requests(site: Site) -> None:
    ada = site.dialer(ADA, EchoHandler(b"ada"))
    async with running(ada):
        await eventually(lambda: bool(ada.connected()))
        waiting = [
            asyncio.create_task(ada.request(SERVER, b"wait", TIMEOUT)) for _ in range(INFLIGHT_MAX)
        ]
        await eventually(lambda: len(site.handler.seen) == INFLIGHT_MAX)
        with pytest.raises(Unavailable):
            await ada.request(SERVER, b"one more", TIMEOUT)
        site.handler.released.set()
        assert await asyncio.gather(*waiting) == [b"server:wait"] * INFLIGHT_MAX


async def test_newer_connection_of_an_account_replaces_the_older_one(site: Site) -> None:
    async with raw_connection(site, ADA) as older:
        await older.receive_str()
        await eventually(lambda: site.peers.connected() == {ADA})
        async with raw_connection(site, ADA) as newer:
            await newer.receive_str()
            assert (await close_of(older))[1] == "replaced"
            asked = asyncio.create_task(site.peers.request(ADA, b"which?", TIMEOUT))
            request = (await newer.receive(timeout=5)).data
            await newer.send_bytes(bytes([Kind.ANSWER]) + request[1:17] + b"newer")
            assert await asked == b"newer"
    await eventually(lambda: not site.peers.connected())


async def test_peer_that_does_not_read_blocks_neither_the_end_nor_its_next_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate_runtime.peers.websocket_peers.CLOSE_SECONDS", 0.2)
    frame = bytes(FRAME_BYTES_MAX)
    async with raw_connection(site, ADA), raw_connection(site, BOB):
        await eventually(lambda: site.peers.connected() == {ADA, BOB})
        asked = [
            site.peers.request(peer, frame, Seconds(1)) for peer in (ADA, BOB) for _ in range(16)
        ]
        got = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(item) for item in got} == {Unavailable}, (
            "no deadline cancelled another request"
        )
        async with raw_connection(site, ADA) as newer:
            await newer.receive_str()
            asking = asyncio.create_task(site.peers.request(ADA, b"which?", TIMEOUT))
            request = (await newer.receive(timeout=2)).data
            await newer.send_bytes(bytes([Kind.ANSWER]) + request[1:17] + b"newer")
            async with asyncio.timeout(2):
                assert await asking == b"newer"
            async with asyncio.timeout(2):
                await site.peers.close()


async def test_bug_in_a_handler_is_logged_and_ends_only_its_connection(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = site.dialer(ADA, EchoHandler(b"ada")), site.dialer(BOB, EchoHandler(b"bob"))
    async with running(ada, bob):
        await eventually(lambda: site.peers.connected() == {ADA, BOB})
        with caplog.at_level(logging.ERROR), pytest.raises(Unavailable):
            await ada.request(SERVER, b"bug", TIMEOUT)
        await eventually(lambda: "ZeroDivisionError" in caplog.text)
        assert await bob.request(SERVER, b"fine", TIMEOUT) == b"server:fine"


async def test_full_journal_is_logged_without_a_traceback(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk ends the daemon by design, so the log shows the remedy and not a traceback."""
    ada = site.dialer(ADA, EchoHandler(b"ada"))
    async with running(ada):
        await eventually(lambda: site.peers.connected() == {ADA})
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(Unavailable, match="the daemon is stopping"),
        ):
            await ada.request(SERVER, b"full", TIMEOUT)
        assert "Free space, then start again" in caplog.text and not any(
            record.exc_info for record in caplog.records
        )
