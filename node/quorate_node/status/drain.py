"""Stops taking new work, because the owner asked for it or because the daemon ends.

By default running jobs go on without the daemon, and the next daemon on this home attaches to them.
In some places they cannot: when a container ends, bubblewrap jobs inside it end too. There the
owner gives `--drain-time`.
"""

import asyncio
import logging
from pathlib import Path

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.market.frame_handler import EventSink
from quorate_node.owner import leaving
from quorate_node.status.offer_state import NO_SLOT_IS_FREE
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Sequence
from quorate_runtime.process.health import Board

POLL_SECONDS = 0.2

log = logging.getLogger(__name__)


class Drain:
    """Takes no work, for the owner or at the end. A marker file says that the daemon drained by
    itself; then the next start takes work again.
    """

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        announcements: Announcements,
        clock: Clock,
        marker: Path,
        board: Board,
        is_on_offer: asyncio.Event,
    ) -> None:
        self._core, self._actor, self._announcements = core, actor, announcements
        self._clock, self._marker = clock, marker
        self._board, self._is_on_offer = board, is_on_offer
        # False until the daemon has replayed the journal. Before that it does not know whether the
        # owner asked for draining, and no coordinator has heard of this start.
        self._is_replayed = False
        self._told = ""

    async def set_by_owner(self, is_on: bool) -> None:
        """Withdraws the offer, or publishes it again if the provider is registered."""
        self._tell(is_on)
        await self._actor.submit(events.DrainRequested(is_on))
        if is_on or self._is_on_offer.is_set():
            await self._actor.submit(events.OfferDue())
        await self._announcements.send_heartbeat(
            self._core.offered(can_work=not any(map(self._board.has, NO_SLOT_IS_FREE)))
        )

    def _tell(self, is_on: bool) -> None:
        """Once: `leave --wait` asks again and again."""
        if is_on:
            is_leaving = leaving.is_leaving(self._marker.parent)
            text = "leaving: finishes its jobs" if is_leaving else "paused: finishes its jobs"
            text += ", and takes no more"
        else:
            text = "resumed: takes jobs again"
        if text != self._told:
            log.info("the owner's command: %s", text)
        self._told = text

    async def announce_exit(self) -> None:
        """Stops taking work, and tells the coordinators that the offer is withdrawn."""
        if not self._is_replayed:
            return
        if not self._core.scalars.is_draining:
            self._marker.touch()
            await self._actor.submit(events.DrainRequested(True))
        await self._actor.submit(events.OfferDue())
        newest = self._core.scalars.offer_seq
        try:
            # Sent here as well, because the daemon ends when this returns and does not wait for the
            # outbox.
            await self._announcements.send_offer(Sequence(newest), WITHDRAWN, newest)
        except Unavailable as error:
            # Not re-raised: a coordinator that cannot be reached gets no heartbeats either, so it
            # stops assigning work.
            # A provider that was never on offer has nothing to withdraw.
            level = logging.INFO if self._is_on_offer.is_set() else logging.DEBUG
            log.log(level, "not every coordinator knows that this provider ends: %s", error)
        await self._announcements.send_heartbeat(self._core.free_slots())

    async def drain_for_exit(self) -> None:
        """Returns when nothing runs. The caller limits the wait."""
        if not self._is_replayed:
            return
        await self.announce_exit()
        while self._core.live():
            await self._clock.sleep(POLL_SECONDS)
        await self.undo_exit()

    async def undo_exit(self) -> None:
        """Takes `announce_exit` back, after each replay; the owner's wish stays."""
        self._is_replayed = True
        if self._marker.exists():
            await self._actor.submit(events.DrainRequested(False))
            self._marker.unlink()
        home = self._marker.parent
        wish = leaving.read_wish(home)
        if wish or leaving.is_leaving(home):
            is_on = wish == leaving.PAUSE or leaving.is_leaving(home)
            await self._actor.submit(events.DrainRequested(is_on))
            leaving.forget_wish(home)
