"""Sends each coordinator, at each new connection, the newest statement it signed for this provider.

A coordinator knows that statement, unless its operator restored an old backup of its journal. Then
its own signature shows that the journal is old, before the coordinator signs lower sums. The
coordinator stops, and its operator looks for the newer journal, which has this provider's pay.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorate_node.messaging.coordinator_dialer import Dialer
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds

POLL_SECONDS = 0.5
SEND_SECONDS = Seconds(10)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StatementEcho:
    """The task of the daemon that sends statements back.

    `newest` returns the newest statement of a coordinator.
    """

    newest: Callable[[Address], Envelope[Statement] | None]
    dialers: Mapping[Address, Dialer]
    clock: Clock
    # coordinator -> number of the connection at which the statement was sent
    _sent_at: dict[Address, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            for address, dialer in self.dialers.items():
                if dialer.connected() and self._sent_at.get(address) != dialer.connections:
                    await self._send(address, dialer)
            await self.clock.sleep(POLL_SECONDS)

    async def _send(self, coordinator: Address, dialer: Dialer) -> None:
        connection, newest = dialer.connections, self.newest(coordinator)
        if newest is not None:
            try:
                await dialer.request(
                    coordinator, frames.encode(frames.StatementSent(newest)), SEND_SECONDS
                )
            except Unavailable as error:
                # Not re-raised: the next round tries again.
                log.debug("0x%s did not get its statement: %s", coordinator.hex(), error)
                return
            except Refused as refused:
                # Not re-raised: an older version of the coordinator does not know this frame.
                log.info("0x%s refused its statement: %s", coordinator.hex(), refused)
        self._sent_at[coordinator] = connection
