"""The `Peers` port over libp2p, dialing side: one stream to one server. It reconnects by itself."""

import logging
import random
from collections.abc import Callable

from quorate_protocol.messages.ports import Clock, Handler
from quorate_protocol.units import Address, Seconds
from quorate_runtime.p2p.binding_hello import Greeter
from quorate_runtime.p2p.host.host_config import PEERS_PROTOCOL, PeerAddress
from quorate_runtime.p2p.host.stream_socket import StreamSocket
from quorate_runtime.p2p.p2p_node import P2pNode
from quorate_runtime.peers.redial import RETRY_MAX_SECONDS, Dialer, Redial
from quorate_runtime.process.log_throttle import LogThrottle

OPEN_SECONDS = Seconds(15)

log = logging.getLogger(__name__)


class Libp2pDialer(Dialer):
    """`ports.Peers` with one server, over a node that runs."""

    def __init__(
        self,
        node: P2pNode,
        server: PeerAddress,
        peer: Address,
        greeter: Greeter,
        handler: Handler,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        retry_max: float = RETRY_MAX_SECONDS,
    ) -> None:
        """`server` belongs to `peer`, and `greeter` speaks for the dialer's account. The attribute
        `server` may be set to another address, which the next try dials.

        The pause between tries grows to `retry_max` seconds.
        """
        super().__init__(peer, handler, Redial(clock, LogThrottle(log, clock), jitter, retry_max))
        self._node, self.server, self._greeter = node, server, greeter
        self._stream: StreamSocket | None = None

    async def run(self) -> None:
        """Dials until `close` or until cancelled. Raises the bugs of its handler."""
        await self.dial(f"0x{self._peer.hex()}: no libp2p connection", self._connect)

    async def close(self) -> None:
        """Ends the connection. `run` returns after its current pause, or its owner cancels it."""
        self._is_closed = True
        if self._stream is not None:
            await self._stream.close("")

    async def _connect(self) -> None:
        await self._node.wait_until_up()
        stream = await self._node.open_stream(self.server, PEERS_PROTOCOL, OPEN_SECONDS)
        try:
            await self._greeter.dial(stream, self._peer)
            self._stream = stream
            await self.converse(stream, f"0x{self._peer.hex()} over libp2p")
        finally:
            self._stream = None
            await stream.close("")
