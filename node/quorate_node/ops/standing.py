"""Asks each coordinator whether it takes this provider off offer, and until when.

A provider that gives up too much of its work is neither matched nor drawn for a while. Without this
its owner would see only that no job comes.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from quorate_node.ops.dates import until_text
from quorate_protocol.messages.views import ProviderView
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address
from quorate_runtime.process.health import Board

EVERYWHERE, SOMEWHERE = "off offer", "partly off offer"
"""Names of the problem: no coordinator gives work, or another one still does."""

log = logging.getLogger(__name__)


class KnowsProvider(Protocol):
    """A coordinator, as far as it says what it thinks of this provider."""

    url: str

    async def own_record(self) -> ProviderView:
        """Returns this provider's record. Refused or Unavailable."""


class Standing:
    """The newest answer of each coordinator. It looks every `pause_seconds`."""

    def __init__(
        self,
        coordinators: Mapping[Address, KnowsProvider],
        board: Board,
        clock: Clock,
        pause_seconds: float,
    ) -> None:
        self._coordinators, self._board, self._clock = coordinators, board, clock
        self._pause_seconds = pause_seconds
        self._known: dict[Address, str] = {}  # why a coordinator gives no work; "" = it does

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(self._pause_seconds)

    async def look(self) -> None:
        """Asks every coordinator once, and tells what has changed."""
        for address, coordinator in self._coordinators.items():
            try:
                found = why_off_offer(await coordinator.own_record(), self._clock.now())
            except (Refused, Unavailable) as error:
                # Not re-raised: it may not know this provider yet, or be away.
                log.debug("%s does not say its record of this provider: %s", coordinator.url, error)
                continue
            before = self._known.get(address, "")
            self._known[address] = f"{coordinator.url}: {found}" if found else ""
            if found and not before:
                log.warning("%s gives this provider no work: %s", coordinator.url, found)
            elif before and not found:
                log.info("%s gives this provider work again", coordinator.url)
        self._tell()

    def _tell(self) -> None:
        off = [text for text in self._known.values() if text]
        is_everywhere = len(off) == len(self._coordinators)
        self._board.put(EVERYWHERE, "; ".join(off) if is_everywhere else "")
        self._board.put(SOMEWHERE, "" if is_everywhere else "; ".join(off))


def why_off_offer(record: ProviderView, now: float) -> str:
    """Returns why a coordinator gives a provider no work, and until when; "" if it does."""
    if record.barred_until > now:
        return f"it is barred for faults {until_text(record.barred_until, now)}"
    if record.off_offer_until <= now:
        return ""
    return (
        f"off offer {until_text(record.off_offer_until, now)}: it declined, gave up or let lapse "
        "more than a fifth of its last jobs"
    )
