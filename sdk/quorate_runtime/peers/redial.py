"""Keeps one connection to one server up: dial, wait longer after each failure, dial again."""

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from quorate_protocol.messages.ports import Clock, Handler
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.peers.channel import Channel, Socket
from quorate_runtime.process.log_throttle import LogThrottle

log = logging.getLogger(__name__)
RETRY_FIRST_SECONDS = 0.25
RETRY_MAX_SECONDS = 30.0
FAILURES = (aiohttp.ClientError, TimeoutError, ConnectionError, Refused)
"""The server is away, refuses this dialer or sends malformed data. The next try may succeed."""


@dataclass(frozen=True, slots=True)
class Redial:
    """How often to dial. The pause between tries grows to `retry_max` seconds. `jitter` returns a
    number from 0 to 1, which varies each pause from half of it to one and a half.
    """

    clock: Clock
    trouble: LogThrottle
    jitter: Callable[[], float] = random.random
    retry_max: float = RETRY_MAX_SECONDS

    async def run(
        self, name: str, connect: Callable[[], Awaitable[None]], is_closed: Callable[[], bool]
    ) -> None:
        """Calls `connect` until `is_closed` or until cancelled. `connect` returns when a connection
        has ended. `name` begins the log line of a failure. Raises what is not in FAILURES.
        """
        delay = RETRY_FIRST_SECONDS
        while not is_closed():
            try:
                await connect()
                delay = RETRY_FIRST_SECONDS
                self.trouble.recovered()
            except FAILURES as error:
                self.trouble.failed(f"{name}: {str(error) or type(error).__name__}")
            if not is_closed():
                await self.clock.sleep(delay * (0.5 + self.jitter()))
                delay = min(2 * delay, self.retry_max)


class Dialer:
    """`ports.Peers` with one server. Its transports dial, say hello, and call `converse`."""

    def __init__(self, peer: Address, handler: Handler, redial: Redial) -> None:
        self._peer, self._handler, self._redial = peer, handler, redial
        self.connections = 0  # how many were made
        self._channel: Channel | None = None
        self._is_closed = False

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        if self._channel is None or peer != self._peer:
            raise Unavailable(f"0x{peer.hex()} is not connected", 2.0)
        return await self._channel.request(frame, deadline)

    def connected(self) -> frozenset[Address]:
        return frozenset() if self._channel is None else frozenset([self._peer])

    async def dial(self, name: str, connect: Callable[[], Awaitable[None]]) -> None:
        await self._redial.run(name, connect, lambda: self._is_closed)

    async def converse(self, socket: Socket, server: str) -> None:
        """Reads until the connection ends. `server` is its name in the log."""
        self._channel = Channel(socket, "0x" + self._peer.hex(), self._handler)
        self.connections += 1
        log.info("connected to %s", server)
        try:
            await self._channel.run()
        finally:
            self._channel = None
