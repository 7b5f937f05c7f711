"""Shows each coordinator, at each new connection, the newest statement that it has signed for
us.

It knows that statement, unless an old backup of its journal was put back. Then its own signature
tells it so, before it signs lower sums: it stops, and its operator looks for the newer journal
in which our pay stands.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.peers.websocket_peers import WebSocketDialer

POLL_SECONDS = 0.5
SEND_SECONDS = Seconds(10)

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StatementEcho:
    """One task."""

    newest: Callable[[Address], Envelope[Statement] | None]  # of a coordinator
    dialers: Mapping[Address, WebSocketDialer]
    clock: Clock
    _shown: dict[Address, int] = field(default_factory=dict)  # at which connection

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for address, dialer in self.dialers.items():
                if dialer.connected() and self._shown.get(address) != dialer.connections:
                    await self._show(address, dialer)
            await self.clock.sleep(POLL_SECONDS)

    async def _show(self, coordinator: Address, dialer: WebSocketDialer) -> None:
        connection, newest = dialer.connections, self.newest(coordinator)
        if newest is not None:
            try:
                await dialer.request(
                    coordinator, frames.encode(frames.StatementSent(newest)), SEND_SECONDS
                )
            except Unavailable as error:
                _logger.debug(
                    "0x%s was not shown its statement: %s", coordinator.hex(), error
                )  # not re-raised: the next look tries again
                return
            except Refused as refused:
                _logger.info(
                    "0x%s does not hear its statement: %s", coordinator.hex(), refused
                )  # not re-raised: a program of before
        self._shown[coordinator] = connection
