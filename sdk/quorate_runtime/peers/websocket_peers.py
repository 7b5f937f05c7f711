"""The `Peers` port over WebSocket: providers dial coordinators, then both sides may ask.

Hello: the server sends a challenge, and the dialer signs it with its operator key. The signature
names this server, so that nobody can use it at another one. TLS (wss) authenticates the server;
frames carry their own signatures in any case.
"""

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import aiohttp
from aiohttp import web
from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.ports import Clock, Handler, Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature
from quorate_runtime.http.error_responses import Busy
from quorate_runtime.keys.crypto import recover
from quorate_runtime.peers.channel import MESSAGE_BYTES_MAX, Channel
from quorate_runtime.peers.peer_connections import HelloPlaces, PeerConnections
from quorate_runtime.peers.redial import RETRY_MAX_SECONDS, Dialer, Redial
from quorate_runtime.process.log_throttle import LogThrottle

HELLO_TAG = "quorate-peers/1"
HELLO_BYTES_MAX = 1024
HELLO_SECONDS = 10
PING_SECONDS = 15
CLOSE_SECONDS = 2.0  # the other side has so long to answer a close
CONNECTIONS_MAX = 4096
CLOSE_REFUSED = 4003  # WebSocket close code of a refused hello; the reason is the refusal code

Authorize = Callable[[Address, Address], Awaitable[bool]]
"""(account, key) -> whether the key may speak for the account now."""

T = TypeVar("T")
WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse

log = logging.getLogger(__name__)


class Challenge(Struct, frozen=True):
    """Server to dialer: 32 fresh random bytes."""

    challenge: Hash32


class Hello(Struct, frozen=True):
    """Dialer to server: who it is, and its key's signature over `hello_digest`."""

    account: Address
    key: Address
    sig: Signature


class Welcome(Struct, frozen=True):
    """Server to dialer: frames may flow."""

    account: Address


def hello_digest(challenge: Hash32, server: Address, account: Address) -> Hash32:
    """H("quorate-peers/1", challenge, server's account, dialer's account)."""
    return hash_tuple(HELLO_TAG, challenge, server, account)


class _WsSocket:
    """`channel.Socket` over aiohttp's two kinds of WebSocket."""

    def __init__(self, ws: WebSocket) -> None:
        self._ws = ws

    async def send(self, message: bytes) -> None:
        try:
            await self._ws.send_bytes(message)
        except asyncio.CancelledError as error:
            _raise_own(error)
            raise ConnectionError("the peer does not read") from error

    async def receive(self) -> bytes | None:
        message = await self._ws.receive()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else None

    async def close(self, reason: str) -> None:
        await _hang_up(self._ws, aiohttp.WSCloseCode.OK, reason.encode())


def _raise_own(error: asyncio.CancelledError) -> None:
    """Raises the cancellation if it is meant for this task.

    In aiohttp all senders of a connection wait for its buffer on one future. When the deadline of
    one sender passes, that future is cancelled, and with it all other senders, also later ones.
    Such a task would end without a trace.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error


async def _hang_up(ws: WebSocket, code: int, message: bytes = b"") -> None:
    """Closes the connection within a bound, even if the other side does not read."""
    try:
        async with asyncio.timeout(2 * CLOSE_SECONDS):
            await ws.close(code=code, message=message)
    except TimeoutError:
        return  # aiohttp has closed the connection
    except asyncio.CancelledError as error:
        _raise_own(error)


class WebSocketPeers(PeerConnections):
    """Server side: the peers that dialed in and proved their accounts. A newer connection of an
    account replaces the older one.
    """

    def __init__(self, account: Address, handler: Handler, authorize: Authorize) -> None:
        super().__init__()
        self._account, self._handler, self._authorize = account, handler, authorize
        self._sockets: dict[int, WebSocket] = {}  # by the number of the connection
        self._count = 0
        self._hellos = HelloPlaces()

    def routes(self, path: str = "/v1/peers") -> list[web.RouteDef]:
        return [web.get(path, self._serve)]

    async def close(self) -> None:
        """Ends all connections. The dialers reconnect when a server listens again."""
        # All at once: a peer that does not answer a close takes seconds, and a thousand of them
        # must not take a thousand times as long.
        await asyncio.gather(
            *(_hang_up(ws, aiohttp.WSCloseCode.GOING_AWAY) for ws in list(self._sockets.values()))
        )

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        if self._count >= CONNECTIONS_MAX or self._hellos.is_crowded(request.remote or ""):
            # Strangers must not take the places of peers that have proved their accounts.
            raise Busy("too many connections; try again later", HELLO_SECONDS)
        ws = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            heartbeat=PING_SECONDS,
            max_msg_size=MESSAGE_BYTES_MAX + 1,
            compress=False,
        )
        await ws.prepare(request)
        self._count += 1
        try:
            await self._converse(ws, request.remote or "")
        finally:
            self._count -= 1
        return ws

    async def _converse(self, ws: web.WebSocketResponse, remote: str) -> None:
        try:
            with self._hellos.place(remote):
                account = await self._check_hello(ws)
        except Refused as refusal:
            # The close code tells the peer, whose fault it is.
            log.info("peer at %s: hello refused: %s", remote, refusal)
            await ws.close(code=CLOSE_REFUSED, message=refusal.code.value.encode())
            return
        except (TimeoutError, ConnectionError, TypeError) as error:
            # The peer was silent, broke the connection, or sent a message of another
            # type (aiohttp's TypeError). The server goes on.
            log.info("peer at %s: no hello: %r", remote, error)
            await ws.close()
            return
        channel = Channel(_WsSocket(ws), "0x" + account.hex(), self._handler)
        older = self.newest(account)
        connection = self.add(account, channel, remote)
        self._sockets[connection.number] = ws
        log.info("peer 0x%s connected from %s", account.hex(), remote)
        try:
            await ws.send_str(canonical.encode(Welcome(self._account)).decode())
            if older is not None and older.number in self._sockets:
                await _hang_up(self._sockets[older.number], aiohttp.WSCloseCode.OK, b"replaced")
            await channel.run()
        except ConnectionError:
            log.info("peer 0x%s went away", account.hex())
        finally:
            del self._sockets[connection.number]
            self.remove(account, connection)

    async def _check_hello(self, ws: web.WebSocketResponse) -> Address:
        """The account of the dialer. `Refused` when it cannot prove it."""
        challenge = Hash32(os.urandom(32))
        await ws.send_str(canonical.encode(Challenge(challenge)).decode())
        async with asyncio.timeout(HELLO_SECONDS):
            hello = canonical.decode(Hello, (await ws.receive_str()).encode(), HELLO_BYTES_MAX)
            if (
                recover(hello_digest(challenge, self._account, hello.account), hello.sig)
                != hello.key
            ):
                raise Refused(
                    Code.BAD_SIGNATURE, "the hello was signed by another key, or for another server"
                )
            if not await self._authorize(hello.account, hello.key):
                raise Refused(
                    Code.WRONG_SIGNER,
                    f"0x{hello.key.hex()} is no operator key of 0x{hello.account.hex()}",
                )
        return hello.account


class WebSocketDialer(Dialer):
    """Dialing side: one connection to one server. It reconnects with growing pauses."""

    def __init__(
        self,
        url: str,
        peer: Address,
        account: Address,
        signer: Signer,
        handler: Handler,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        retry_max: float = RETRY_MAX_SECONDS,
    ) -> None:
        """`url` (ws:// or wss://) belongs to `peer`; `signer` is an operator key of `account`. The
        pause between tries grows to `retry_max` seconds.
        """
        super().__init__(peer, handler, Redial(clock, LogThrottle(log, clock), jitter, retry_max))
        self._url, self._account, self._signer = url, account, signer
        self._ws: aiohttp.ClientWebSocketResponse | None = None

    async def run(self) -> None:
        """Dials until `close` or until cancelled. Raises the bugs of its handler."""
        async with aiohttp.ClientSession() as session:
            await self.dial(f"{self._url}: no connection", partial(self._connect, session))

    async def close(self) -> None:
        """Ends the connection. `run` returns after its current pause, or its owner cancels it."""
        self._is_closed = True
        if self._ws is not None:
            await self._ws.close()

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(
            self._url,
            heartbeat=PING_SECONDS,
            max_msg_size=MESSAGE_BYTES_MAX + 1,
            compress=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=5.0),
        ) as ws:
            self._ws = ws
            async with asyncio.timeout(HELLO_SECONDS):
                challenge = await _receive(ws, Challenge)
                sig = self._signer.sign(
                    hello_digest(challenge.challenge, self._peer, self._account)
                )
                await ws.send_str(
                    canonical.encode(Hello(self._account, self._signer.address, sig)).decode()
                )
                await _receive(ws, Welcome)
            await self.converse(_WsSocket(ws), self._url)


async def _receive(ws: aiohttp.ClientWebSocketResponse, kind: type[T]) -> T:
    message = await ws.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError(
            f"the server ended the hello: {message.extra or message.data or ws.close_code}"
        )
    return canonical.decode(kind, message.data.encode(), HELLO_BYTES_MAX)
