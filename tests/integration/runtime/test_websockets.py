"""Tests WebSocket connections: the hello, what a peer may send, and how the dialer reconnects."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32, Seconds, Signature
from quorate_runtime.peers.channel import INFLIGHT_MAX, Kind
from quorate_runtime.peers.websocket_peers import (
    Challenge,
    Hello,
    WebSocketDialer,
    Welcome,
    hello_digest,
)
from support.peer_sites import (
    ADA,
    BOB,
    EVE,
    SERVER,
    SIGNERS,
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
        assert (await ws.receive(timeout=60)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )
        await eventually(lambda: site.peers.connected() == {BOB} and bool(bob.connected()))
        assert await bob.request(SERVER, b"fine", TIMEOUT) == b"server:fine"


async def test_unexpected_answer_is_ignored_and_too_many_requests_are_unavailable(
    site: Site,
) -> None:
    async with raw_connection(site, ADA) as ws:
        await ws.receive_str()
        await ws.send_bytes(bytes([Kind.ANSWER]) + bytes(16) + b"no request")
        for number in range(INFLIGHT_MAX + 1):
            await ws.send_bytes(bytes([Kind.REQUEST]) + number.to_bytes(16, "big") + b"wait")
        refused = (await ws.receive(timeout=60)).data
        assert (
            refused[0] == Kind.UNAVAILABLE and int.from_bytes(refused[1:17], "big") == INFLIGHT_MAX
        )
        site.handler.released.set()
        answers = [(await ws.receive(timeout=60)).data for _ in range(INFLIGHT_MAX)]
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
            request = (await newer.receive(timeout=60)).data
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
            request = (await newer.receive(timeout=60)).data
            await newer.send_bytes(bytes([Kind.ANSWER]) + request[1:17] + b"newer")
            async with asyncio.timeout(15):
                assert await asking == b"newer"
            async with asyncio.timeout(15):
                await site.peers.close()


async def test_bug_in_a_handler_is_logged_and_ends_only_its_connection(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = site.dialer(ADA, EchoHandler(b"ada")), site.dialer(BOB, EchoHandler(b"bob"))
    async with running(ada, bob):
        await eventually(lambda: bool(ada.connected() and bob.connected()))
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
        await eventually(lambda: bool(ada.connected()))
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(Unavailable, match="the daemon is stopping"),
        ):
            await ada.request(SERVER, b"full", TIMEOUT)
        assert "Free space, then start again" in caplog.text and not any(
            record.exc_info for record in caplog.records
        )


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


async def test_unknown_account_and_false_signature_are_refused_in_the_hello(site: Site) -> None:
    async with raw_connection(site, EVE) as ws:
        assert await close_of(ws) == (4003, "wrong-signer")
    async with raw_connection(site, ADA, SIGNERS[EVE]) as ws:
        assert await close_of(ws) == (4003, "bad-signature")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_str('{"account":"0x00"}')
        assert await close_of(ws) == (4003, "malformed")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_bytes(b"no text")
        assert (await close_of(ws))[0] == 1000
    assert site.peers.connected() == frozenset() and site.handler.seen == []


async def test_hello_for_another_server_is_refused(site: Site) -> None:
    """A false server can pass on the real server's challenge. The signature names the false one."""
    other = Address(b"\xdd" * 20)
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        challenge = canonical.decode(Challenge, (await ws.receive_str()).encode())
        sig = SIGNERS[ADA].sign(hello_digest(challenge.challenge, other, ADA))
        await ws.send_str(canonical.encode(Hello(ADA, SIGNERS[ADA].address, sig)).decode())
        assert await close_of(ws) == (4003, "bad-signature")


def test_hello_digest_differs_for_each_server_and_account() -> None:
    challenge = Hash32(bytes(32))
    assert (
        len(
            {
                hello_digest(challenge, SERVER, ADA),
                hello_digest(challenge, ADA, SERVER),
                hello_digest(challenge, SERVER, BOB),
            }
        )
        == 3
    )
    assert Signature(SIGNERS[ADA].sign(hello_digest(challenge, SERVER, ADA)))
