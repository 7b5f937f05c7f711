"""Dials coordinators for the streams that clients want to their rentals.

Each is a WebSocket, whose bytes go to the SSH server through a pair of sockets. The coordinator is
not trusted: the SSH server lets in only the keys that the client's spec names.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from quorate_protocol.messages.frames import StreamWanted
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.http import byte_streams
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.error_responses import Busy

STREAMS_MAX = 256
RENTAL_STREAMS_MAX = 32
RETRY_SECONDS = 5.0
CONNECT_SECONDS = 20.0
END_SECONDS = 5.0  # the SSH server has so long after the end of its connection

Serve = Callable[[socket.socket, Hash32], Awaitable[None]]
"""Answers as the SSH server of one rental (its assignment hash) until the connection ends, or until
it is cancelled. It closes the socket.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamDialer:
    """The streams of one provider, at most so many at once."""

    session: aiohttp.ClientSession
    urls: Mapping[Address, str]  # of coordinators
    is_live: Callable[[Address, Hash32], bool]  # a rental of this coordinator runs
    serve: Serve
    _wanted: asyncio.Queue[tuple[str, StreamWanted]] = field(
        default_factory=lambda: asyncio.Queue(STREAMS_MAX)
    )
    _open: Counter[Hash32] = field(default_factory=Counter)  # also those that wait

    @property
    def open_streams(self) -> int:
        return self._open.total()

    def want(self, coordinator: Address, wanted: StreamWanted) -> None:
        """Raises Refused if there is no such rental, or too many streams are open."""
        lease = wanted.assignment_hash
        if not self.is_live(coordinator, lease):
            raise Refused(Code.UNKNOWN, f"stream: rental 0x{lease.hex()[:12]} does not run here")
        if self._open.total() >= STREAMS_MAX or self._open[lease] >= RENTAL_STREAMS_MAX:
            most = f"too many streams are open (to one rental at most {RENTAL_STREAMS_MAX})"
            raise Busy(most, RETRY_SECONDS)
        self._open[lease] += 1
        self._wanted.put_nowait((self.urls[coordinator], wanted))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                url, wanted = await self._wanted.get()
                group.create_task(self._stream(url, wanted))

    async def _stream(self, url: str, wanted: StreamWanted) -> None:
        lease = wanted.assignment_hash
        try:
            await self._dial(url + Routes.DIALED_STREAM.at(ticket=wanted.ticket), lease)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Not re-raised: the client sees the end of its stream, and may ask again.
            log.info("a stream to rental 0x%s ended: %s", lease.hex()[:12], error)
        finally:
            self._open[lease] -= 1
            if not self._open[lease]:
                del self._open[lease]

    async def _dial(self, url: str, lease: Hash32) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            ws = await self.session.ws_connect(
                url,
                heartbeat=byte_streams.PING_SECONDS,
                max_msg_size=byte_streams.MESSAGE_BYTES_MAX + 1,
                timeout=aiohttp.ClientWSTimeout(ws_close=byte_streams.CLOSE_SECONDS),
                compress=0,
            )
        ours, servers = socket.socketpair()
        serving = asyncio.ensure_future(self.serve(servers, lease))
        try:
            await byte_streams.bridge(ws, ours)
            await asyncio.wait([serving], timeout=END_SECONDS)
        finally:
            await ws.close()
            serving.cancel()
            for error in await asyncio.gather(serving, return_exceptions=True):
                if isinstance(error, Refused):
                    log.info("a stream to rental 0x%s was refused: %s", lease.hex()[:12], error)
                elif isinstance(error, Exception):
                    log.warning("the SSH server of 0x%s failed", lease.hex()[:12], exc_info=error)
