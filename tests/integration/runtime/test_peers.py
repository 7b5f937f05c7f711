"""The `Peers` port: one set of promises for the WebSocket adapter and the hub in memory, then
what only sockets can do wrong.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.ports import Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Seconds, Signature
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal_port import JournalFailed
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.peers.channel import INFLIGHT_MAX, Kind
from quorate_runtime.peers.memory_peers import MemoryHub
from quorate_runtime.peers.websocket_peers import (
    Challenge,
    Hello,
    WebSocketDialer,
    WebSocketPeers,
    Welcome,
    hello_digest,
)
from support.http_server import on_loopback

SERVER = Address(b"\xcc" * 20)
SIGNERS = {Address(bytes([n]) * 20): KeySigner(bytes([n]) * 32) for n in (1, 2, 3)}
ADA, BOB, EVE = SIGNERS
TIMEOUT = Seconds(5)


@dataclass
class ClientSession:
    """Answers by what the frame says, and remembers who asked."""

    name: bytes
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, sender: str, frame: bytes) -> bytes:
        self.seen.append((sender, frame))
        match frame:
            case b"refuse":
                raise Refused(Code.EXPIRED, "too old: é")
            case b"fail":
                raise Unavailable("disk full", 2.5)
            case b"silence":
                await asyncio.Event().wait()
            case b"wait":
                await self.released.wait()
            case b"bug":
                raise ZeroDivisionError
            case b"full":
                raise JournalFailed("journal: the disk is full. Free space, then start again.")
            case _:
                pass
        return self.name + b":" + frame[-FRAME_BYTES_MAX + 1000 :]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


async def authorize(account: Address, key: Address) -> bool:
    return account in (ADA, BOB) and SIGNERS[account].address == key


@dataclass
class Network:
    """A server and those who dialed it."""

    server: Peers
    client_session: ClientSession
    dialers: dict[Address, tuple[Peers, ClientSession]]


class Site:
    """A real HTTP server with the peers' route that can be stopped and started on one port."""

    def __init__(self, client_session: ClientSession) -> None:
        self.client_session, self.port = client_session, 0
        self.peers = WebSocketPeers(SERVER, client_session.handle, authorize)
        self._open = AsyncExitStack()

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(self.peers.routes())
        url = await self._open.enter_async_context(on_loopback(app, port=self.port))
        self.port = int(url.rpartition(":")[2])

    async def stop(self) -> None:
        await self.peers.close()
        await self._open.aclose()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/peers"

    def dialer(
        self, account: Address, client_session: ClientSession, signer: KeySigner | None = None
    ) -> WebSocketDialer:
        return WebSocketDialer(
            self.url,
            SERVER,
            account,
            signer or SIGNERS[account],
            client_session.handle,
            SystemClock(),
            lambda: 0.0,
        )


@asynccontextmanager
async def running(*dialers: WebSocketDialer) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(dialer.run()) for dialer in dialers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        bugs = [
            r
            for r in results
            if isinstance(r, BaseException) and not isinstance(r, asyncio.CancelledError)
        ]
        assert not bugs, bugs


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(ClientSession(b"server"))
    await site.start()
    yield site
    await site.stop()


@pytest.fixture(params=["ws", "memory"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    desks = {account: ClientSession(b"dialer") for account in (ADA, BOB)}
    if request.param == "memory":
        async with MemoryHub(SystemClock()) as hub:
            client_session = ClientSession(b"server")
            yield Network(
                hub.join(SERVER, client_session.handle),
                client_session,
                {a: (hub.join(a, d.handle), d) for a, d in desks.items()},
            )
        return
    site = Site(ClientSession(b"server"))
    await site.start()
    dialers = {
        account: site.dialer(account, client_session) for account, client_session in desks.items()
    }
    async with running(*dialers.values()):
        await until(
            lambda: (
                site.peers.connected() == {ADA, BOB}
                and all(d.connected() for d in dialers.values())
            )
        )
        yield Network(site.peers, site.client_session, {a: (dialers[a], desks[a]) for a in dialers})
    await site.stop()


async def test_both_sides_ask_and_know_who_asked(network: Network) -> None:
    ada, client_session = network.dialers[ADA]
    assert await ada.request(SERVER, b"hello", TIMEOUT) == b"server:hello"
    assert await network.server.request(ADA, b"run", TIMEOUT) == b"dialer:run"
    assert network.client_session.seen == [
        ("0x" + ADA.hex(), b"hello")
    ] and client_session.seen == [("0x" + SERVER.hex(), b"run")]
    assert SERVER in ada.connected() and {ADA, BOB} <= network.server.connected()


async def test_refusals_and_failures_are_raised_where_they_were_caused(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    with pytest.raises(Refused) as refused:
        await ada.request(SERVER, b"refuse", TIMEOUT)
    assert (refused.value.code, refused.value.detail) == (Code.EXPIRED, "too old: é")
    with pytest.raises(Unavailable, match="disk full") as failed:
        await network.server.request(ADA, b"fail", TIMEOUT)
    assert failed.value.retry_after == 2.5
    assert await ada.request(SERVER, b"next", TIMEOUT) == b"server:next"


async def test_answers_find_their_questions(network: Network) -> None:
    async def ask(peers: Peers, to: Address, frame: bytes) -> bytes:
        return await peers.request(to, frame, TIMEOUT)

    ada, bob = network.dialers[ADA][0], network.dialers[BOB][0]
    slow = asyncio.create_task(ask(ada, SERVER, b"wait"))
    questions = [b"%d" % n for n in range(INFLIGHT_MAX - 10)]
    answers = await asyncio.gather(*(ask(p, SERVER, q) for q in questions for p in (ada, bob)))
    assert answers == [b"server:" + q for q in questions for _ in range(2)]
    network.client_session.released.set()
    assert await slow == b"server:wait"


async def test_silence_is_unavailable_after_the_deadline(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer within 1 s"):
        await ada.request(SERVER, b"silence", Seconds(1))
    assert 0.9 < time.monotonic() - begun < 4
    assert await ada.request(SERVER, b"still there", TIMEOUT) == b"server:still there"


async def test_strangers_are_unavailable(network: Network) -> None:
    for peers in (network.server, network.dialers[ADA][0]):
        with pytest.raises(Unavailable, match="not connected"):
            await peers.request(EVE, b"x", TIMEOUT)


async def test_frames_of_a_mebibyte_and_no_more(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    answer = await ada.request(SERVER, bytes(FRAME_BYTES_MAX), TIMEOUT)
    assert len(answer) > FRAME_BYTES_MAX - 2000
    with pytest.raises(Refused) as refused:
        await ada.request(SERVER, bytes(FRAME_BYTES_MAX + 1), TIMEOUT)
    assert refused.value.code is Code.OVERSIZE


async def test_after_close_nobody_is_connected(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    await ada.close()
    await until(lambda: not ada.connected() and ADA not in network.server.connected())
    with pytest.raises(Unavailable):
        await ada.request(SERVER, b"x", TIMEOUT)
    with pytest.raises(Unavailable):
        await network.server.request(ADA, b"x", TIMEOUT)


# ------------------------------------------------------------------------------------ sockets alone


@asynccontextmanager
async def raw(
    site: Site, account: Address = EVE, signer: KeySigner | None = None
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A stranger's program on the wire, after its hello."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(site.url, max_msg_size=0) as ws,
    ):
        challenge = canonical.decode(Challenge, (await ws.receive_str()).encode())
        sig = (signer or SIGNERS[account]).sign(hello_digest(challenge.challenge, SERVER, account))
        await ws.send_str(canonical.encode(Hello(account, SIGNERS[account].address, sig)).decode())
        yield ws


async def closed_with(ws: aiohttp.ClientWebSocketResponse) -> tuple[object, str | None]:
    message = await ws.receive(timeout=5)
    assert message.type is aiohttp.WSMsgType.CLOSE
    return message.data, message.extra


async def test_unknown_accounts_and_false_signatures_are_refused_at_the_door(site: Site) -> None:
    async with raw(site, EVE) as ws:
        assert await closed_with(ws) == (4003, "wrong-signer")
    async with raw(site, ADA, SIGNERS[EVE]) as ws:
        assert await closed_with(ws) == (4003, "bad-signature")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_str('{"account":"0x00"}')
        assert await closed_with(ws) == (4003, "malformed")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_bytes(b"no text")
        assert (await closed_with(ws))[0] == 1000
    assert site.peers.connected() == frozenset() and site.client_session.seen == []


async def test_a_hello_for_another_server_is_of_no_use(site: Site) -> None:
    """A false server that passes the real one's challenge on gets a signature that the real one
    refuses.
    """
    other = Address(b"\xdd" * 20)
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        challenge = canonical.decode(Challenge, (await ws.receive_str()).encode())
        sig = SIGNERS[ADA].sign(hello_digest(challenge.challenge, other, ADA))
        await ws.send_str(canonical.encode(Hello(ADA, SIGNERS[ADA].address, sig)).decode())
        assert await closed_with(ws) == (4003, "bad-signature")


def refusal_of_no_code() -> bytes:
    return bytes([Kind.REFUSED]) + bytes(16) + b'{"code":"no-such-code","detail":""}'


GARBAGE = [
    b"",
    b"\1",
    bytes([0]) + bytes(16),
    bytes([9]) + bytes(40),
    b"\1" + bytes(16 + FRAME_BYTES_MAX + 1),
    refusal_of_no_code(),
]


@pytest.mark.parametrize(
    "garbage", GARBAGE, ids=["empty", "short", "kind 0", "kind 9", "oversize", "bad refusal"]
)
async def test_garbage_ends_that_connection_only(site: Site, garbage: bytes) -> None:
    client_session = ClientSession(b"bob")
    bob = site.dialer(BOB, client_session)
    async with running(bob), raw(site, ADA) as ws:
        await until(lambda: site.peers.connected() == {ADA, BOB})
        assert canonical.decode(Welcome, (await ws.receive_str()).encode()).account == SERVER
        await ws.send_bytes(garbage)
        assert (await ws.receive(timeout=5)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )
        await until(lambda: site.peers.connected() == {BOB})
        assert await bob.request(SERVER, b"fine", TIMEOUT) == b"server:fine"


async def test_unasked_answers_are_ignored_and_floods_are_turned_away(site: Site) -> None:
    async with raw(site, ADA) as ws:
        await ws.receive_str()
        await ws.send_bytes(bytes([Kind.ANSWER]) + bytes(16) + b"nobody asked")
        for number in range(INFLIGHT_MAX + 1):
            await ws.send_bytes(bytes([Kind.REQUEST]) + number.to_bytes(16, "big") + b"wait")
        turned_away = (await ws.receive(timeout=5)).data
        assert (
            turned_away[0] == Kind.UNAVAILABLE
            and int.from_bytes(turned_away[1:17], "big") == INFLIGHT_MAX
        )
        site.client_session.released.set()
        answers = [(await ws.receive(timeout=5)).data for _ in range(INFLIGHT_MAX)]
        assert {answer[0] for answer in answers} == {Kind.ANSWER} and len(
            {answer[1:17] for answer in answers}
        ) == INFLIGHT_MAX


async def test_requests_in_flight_are_bounded(site: Site) -> None:
    ada = site.dialer(ADA, ClientSession(b"ada"))
    async with running(ada):
        await until(lambda: bool(ada.connected()))
        waiting = [
            asyncio.create_task(ada.request(SERVER, b"wait", TIMEOUT)) for _ in range(INFLIGHT_MAX)
        ]
        await until(lambda: len(site.client_session.seen) == INFLIGHT_MAX)
        with pytest.raises(Unavailable):
            await ada.request(SERVER, b"one more", TIMEOUT)
        site.client_session.released.set()
        assert await asyncio.gather(*waiting) == [b"server:wait"] * INFLIGHT_MAX


async def test_a_dialer_comes_back_after_the_server_was_away(site: Site) -> None:
    ada = site.dialer(ADA, ClientSession(b"ada"))
    async with running(ada):
        await until(lambda: bool(ada.connected()))
        asked = asyncio.create_task(ada.request(SERVER, b"wait", Seconds(30)))
        await until(lambda: len(site.client_session.seen) == 1)
        await site.stop()
        with pytest.raises(Unavailable, match="went away"):
            await asked
        await until(lambda: not ada.connected())
        await site.start()
        await until(lambda: bool(ada.connected()))
        assert await ada.request(SERVER, b"again", TIMEOUT) == b"server:again"


async def test_a_newer_connection_replaces_the_older_one(site: Site) -> None:
    async with raw(site, ADA) as older:
        await older.receive_str()
        await until(lambda: site.peers.connected() == {ADA})
        async with raw(site, ADA) as newer:
            await newer.receive_str()
            assert (await closed_with(older))[1] == "replaced"
            asked = asyncio.create_task(site.peers.request(ADA, b"which?", TIMEOUT))
            request = (await newer.receive(timeout=5)).data
            await newer.send_bytes(bytes([Kind.ANSWER]) + request[1:17] + b"newer")
            assert await asked == b"newer"
    await until(lambda: not site.peers.connected())


async def test_peers_that_do_not_read_hold_up_no_end_and_no_successor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate_runtime.peers.websocket_peers.CLOSE_SECONDS", 0.2)
    frame = bytes(FRAME_BYTES_MAX)
    async with raw(site, ADA), raw(site, BOB):
        await until(lambda: site.peers.connected() == {ADA, BOB})
        asked = [
            site.peers.request(peer, frame, Seconds(1)) for peer in (ADA, BOB) for _ in range(16)
        ]
        got = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(item) for item in got} == {Unavailable}, "nobody cancelled them"
        async with raw(site, ADA) as newer:
            await newer.receive_str()
            asking = asyncio.create_task(site.peers.request(ADA, b"which?", TIMEOUT))
            request = (await newer.receive(timeout=2)).data
            await newer.send_bytes(bytes([Kind.ANSWER]) + request[1:17] + b"newer")
            async with asyncio.timeout(2):
                assert await asking == b"newer"
            async with asyncio.timeout(2):
                await site.peers.close()


async def test_a_bug_in_a_handler_is_loud_and_ends_its_connection_only(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = site.dialer(ADA, ClientSession(b"ada")), site.dialer(BOB, ClientSession(b"bob"))
    async with running(ada, bob):
        await until(lambda: site.peers.connected() == {ADA, BOB})
        with caplog.at_level(logging.ERROR), pytest.raises(Unavailable):
            await ada.request(SERVER, b"bug", TIMEOUT)
        await until(lambda: "ZeroDivisionError" in caplog.text)
        assert await bob.request(SERVER, b"fine", TIMEOUT) == b"server:fine"


async def test_a_journal_that_is_full_is_no_bug_of_a_handler(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """An Assignment on its way while the disk became full ended the daemon, as it should, below
    a page of traceback.
    """
    ada = site.dialer(ADA, ClientSession(b"ada"))
    async with running(ada):
        await until(lambda: site.peers.connected() == {ADA})
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(Unavailable, match="the daemon is stopping"),
        ):
            await ada.request(SERVER, b"full", TIMEOUT)
        assert "Free space, then start again" in caplog.text and not any(
            record.exc_info for record in caplog.records
        )


async def test_a_dialer_gives_its_handlers_bug_to_its_owner(site: Site) -> None:
    ada = site.dialer(ADA, ClientSession(b"ada"))
    task = asyncio.create_task(ada.run())
    await until(lambda: site.peers.connected() == {ADA})
    with pytest.raises(Unavailable):
        await site.peers.request(ADA, b"bug", TIMEOUT)
    with pytest.raises(ExceptionGroup) as ended:
        await task
    assert ended.group_contains(ZeroDivisionError)


async def test_a_refused_dialer_keeps_asking_with_growing_pauses(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    eve = site.dialer(EVE, ClientSession(b"eve"))
    with caplog.at_level(logging.WARNING):
        async with running(eve):
            await until(lambda: caplog.text.count("wrong-signer") >= 3)
    assert not eve.connected() and not site.peers.connected()


@dataclass
class Hasty:
    """A clock that does not wait, and remembers for how long it should have."""

    pauses: list[float] = field(default_factory=list)

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.001)


async def test_pauses_between_tries_grow_no_longer_than_a_heartbeat(site: Site) -> None:
    """A provider that comes back later than its heartbeats are due is dead to the coordinator
    that has just come back.
    """
    clock = Hasty()
    eve = WebSocketDialer(
        site.url,
        SERVER,
        EVE,
        SIGNERS[EVE],
        ClientSession(b"eve").handle,
        clock,
        lambda: 0.5,
        retry_max=3.0,
    )
    async with running(eve):
        await until(lambda: len(clock.pauses) >= 7)
    assert clock.pauses[:7] == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_the_digest_binds_server_and_account() -> None:
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
