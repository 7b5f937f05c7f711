"""The connection to one coordinator: over libp2p where that works, else over WebSocket."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from quorate_protocol.messages.ports import Clock, Peers
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds

LOOK_SECONDS = 0.25
REFRESH_SECONDS = 30.0
LIBP2P, WEBSOCKET = "libp2p", "websocket"

log = logging.getLogger(__name__)


class Dialer(Peers, Protocol):
    """A connection over one transport, which reconnects by itself."""

    @property
    def connections(self) -> int: ...

    async def run(self) -> None: ...


class CoordinatorDialer:
    """`ports.Peers` with one coordinator. While libp2p does not get through for `patience_seconds`,
    a WebSocket stands in.
    """

    def __init__(
        self,
        coordinator: Address,
        websocket: Callable[[], Dialer] | None,
        libp2p: Dialer | None,
        clock: Clock,
        patience_seconds: float,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Without `websocket` nothing stands in. `refresh` asks for a new libp2p address."""
        assert websocket or libp2p, "one of both is there"
        self._coordinator, self._new_websocket, self._libp2p = coordinator, websocket, libp2p
        self._clock, self._patience, self._refresh = clock, patience_seconds, refresh
        self._websocket: Dialer | None = None
        self._past_connections = 0

    @property
    def connections(self) -> int:
        dialers = (self._libp2p, self._websocket)
        return self._past_connections + sum(dialer.connections for dialer in dialers if dialer)

    @property
    def transport(self) -> str:
        """The transport in use; "" while there is no connection."""
        if self._libp2p is not None and self._libp2p.connected():
            return LIBP2P
        return WEBSOCKET if self._websocket is not None and self._websocket.connected() else ""

    async def run(self) -> None:
        """Raises the bugs of the frame handler."""
        if self._libp2p is None:
            await self._run_websocket()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._libp2p.run(), name="libp2p peer")
            if self._new_websocket is not None:
                group.create_task(self._stand_in(), name="stand-in peer")

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        for dialer in (self._libp2p, self._websocket):
            if dialer is not None and dialer.connected():
                return await dialer.request(peer, frame, deadline)
        raise Unavailable(f"0x{peer.hex()} is not connected", 2.0)

    def connected(self) -> frozenset[Address]:
        return frozenset([self._coordinator]) if self.transport else frozenset()

    async def close(self) -> None:
        for dialer in (self._libp2p, self._websocket):
            if dialer is not None:
                await dialer.close()

    async def _run_websocket(self) -> None:
        assert self._new_websocket is not None, "checked by the caller"
        self._websocket = self._new_websocket()
        try:
            await self._websocket.run()
        finally:
            self._past_connections += self._websocket.connections
            self._websocket = None

    async def _stand_in(self) -> None:
        """Connects over WebSocket while libp2p does not get through."""
        assert self._libp2p is not None, "something to stand in for"
        while True:
            if await self._connects_within(self._patience):
                await self._clock.sleep(LOOK_SECONDS)
                continue
            name = f"0x{self._coordinator.hex()}"
            log.warning("%s does not answer over libp2p; trying WebSocket too", name)
            async with asyncio.TaskGroup() as group:
                standing_in = group.create_task(self._run_websocket())
                while not await self._connects_within(REFRESH_SECONDS):
                    if self._refresh is not None:
                        await self._refresh()
                standing_in.cancel()
            log.info("%s answers over libp2p again", name)

    async def _connects_within(self, seconds: float) -> bool:
        """Whether libp2p is connected now, or gets connected within some seconds."""
        assert self._libp2p is not None, "something to look at"
        limit = self._clock.now() + seconds
        while not self._libp2p.connected():
            if self._clock.now() >= limit:
                return False
            await self._clock.sleep(LOOK_SECONDS)
        return True
