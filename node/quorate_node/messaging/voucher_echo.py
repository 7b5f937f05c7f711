"""Sends each coordinator, at each new connection, the newest voucher it signed for this provider.

A coordinator knows that voucher, unless its operator restored an old backup of its journal. Then
its own signature shows that the journal is old, before the coordinator signs lower sums. The
coordinator stops, and its operator looks for the newer journal, which has this provider's pay.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorate_node.messaging.coordinator_dialer import Dialer
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds

POLL_SECONDS = 0.5
SEND_SECONDS = Seconds(10)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class VoucherEcho:
    """The task of the daemon that sends vouchers back.

    `newest` returns the newest voucher of a coordinator.
    """

    newest: Callable[[Address], Envelope[Voucher] | None]
    dialers: Mapping[Address, Dialer]
    clock: Clock
    # coordinator -> number of the connection at which the voucher was sent
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
                    coordinator, frames.encode(frames.VoucherSent(newest)), SEND_SECONDS
                )
            except Unavailable as error:
                # Not re-raised: the next round tries again.
                log.debug("0x%s did not get its voucher: %s", coordinator.hex(), error)
                return
            except Refused as refused:
                # Not re-raised: the voucher is kept, and the chain takes it.
                log.warning("0x%s refused its voucher: %s", coordinator.hex(), refused)
        self._sent_at[coordinator] = connection
