"""A real peers' server, dialers and raw connections for tests of the `Peers` port."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from aiohttp import web

from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.actor.journal_port import JournalFailed
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.peers.websocket_peers import (
    Challenge,
    Hello,
    WebSocketDialer,
    WebSocketPeers,
    hello_digest,
)
from support.http_server import on_loopback

SERVER = Address(b"\xcc" * 20)
SIGNERS = {Address(bytes([n]) * 20): KeySigner(bytes([n]) * 32) for n in (1, 2, 3)}
ADA, BOB, EVE = SIGNERS
TIMEOUT = Seconds(20)


@dataclass
class EchoHandler:
    """Answers as the frame says, and records the senders."""

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


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


async def authorize(account: Address, key: Address) -> bool:
    return account in (ADA, BOB) and SIGNERS[account].address == key


class Dialer(Protocol):
    """What the dialers of all transports have."""

    async def run(self) -> None: ...


class Site:
    """A real HTTP server with the peers' route. Tests stop it and start it again on the same
    port.
    """

    def __init__(self, handler: EchoHandler) -> None:
        self.handler, self.port = handler, 0
        self.peers = WebSocketPeers(SERVER, handler.handle, authorize)
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
        self, account: Address, handler: EchoHandler, signer: KeySigner | None = None
    ) -> WebSocketDialer:
        return WebSocketDialer(
            self.url,
            SERVER,
            account,
            signer or SIGNERS[account],
            handler.handle,
            SystemClock(),
            lambda: 0.0,
        )


@asynccontextmanager
async def running(*dialers: Dialer) -> AsyncIterator[None]:
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


@asynccontextmanager
async def raw_connection(
    site: Site, account: Address = EVE, signer: KeySigner | None = None
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Returns a WebSocket connection after its hello, made without the project's dialer."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(site.url, max_msg_size=0) as ws,
    ):
        challenge = canonical.decode(Challenge, (await ws.receive_str()).encode())
        sig = (signer or SIGNERS[account]).sign(hello_digest(challenge.challenge, SERVER, account))
        await ws.send_str(canonical.encode(Hello(account, SIGNERS[account].address, sig)).decode())
        yield ws


async def close_of(ws: aiohttp.ClientWebSocketResponse) -> tuple[object, str | None]:
    message = await ws.receive(timeout=60)
    assert message.type is aiohttp.WSMsgType.CLOSE
    return message.data, message.extra
