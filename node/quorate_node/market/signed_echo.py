"""Sends each coordinator, at each new connection, the newest that it signed for this provider.

A coordinator knows that, unless its operator restored an old backup of its journal, or runs a
second coordinator with the same keys. Then its own signature shows that its journal is behind,
before it signs what contradicts it. It stops, and its operator looks for the newer journal, which
has this provider's pay.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorate_node.core.debts import Debt
from quorate_node.market.coordinator_dialer import Dialer
from quorate_protocol.messages import frames
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Seconds

POLL_SECONDS = 0.5
SEND_SECONDS = Seconds(10)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SignedEcho:
    """The task of the daemon that sends the newest voucher and the newest Assignment back."""

    debt: Callable[[Address], Debt]
    dialers: Mapping[Address, Dialer]
    clock: Clock
    # coordinator -> number of the connection at which they were sent
    _sent_at: dict[Address, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            for address, dialer in self.dialers.items():
                if dialer.connected() and self._sent_at.get(address) != dialer.connections:
                    await self._send(address, dialer)
            await self.clock.sleep(POLL_SECONDS)

    async def _send(self, coordinator: Address, dialer: Dialer) -> None:
        connection = dialer.connections
        for frame in shown(self.debt(coordinator)):
            try:
                await dialer.request(coordinator, frames.encode(frame), SEND_SECONDS)
            except Unavailable as error:
                # Not re-raised: the next round tries again.
                log.debug("0x%s did not get what it signed: %s", coordinator.hex(), error)
                return
            except Refused as refused:
                # Not re-raised: it is kept, and the chain takes a voucher.
                log.warning("0x%s refused what it signed: %s", coordinator.hex(), refused)
        self._sent_at[coordinator] = connection


def shown(debt: Debt) -> tuple[frames.Frame, ...]:
    """Returns the frames that show a coordinator what it signed last."""
    voucher, assignment = debt.voucher, debt.assignment
    return (
        *([frames.VoucherSent(voucher)] if voucher else []),
        *([frames.AssignmentShown(assignment)] if assignment else []),
    )
