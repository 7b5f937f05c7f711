"""How a provider goes: no new work from the first signal on, and time for what runs if its owner
gives any.

Without a bound for draining jobs go on by themselves, and the next daemon on this home attaches
to them. Where they cannot (a container that ends takes its bubblewrap jobs along) the owner
gives `--drain-seconds`.
"""

import logging
from pathlib import Path

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.announcements import Announcements
from quorate_node.messaging.frame_handler import Submits
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Sequence

POLL_SECONDS = 0.2

_logger = logging.getLogger(__name__)


class Leaving:
    """Drains, and remembers on disk that it was not the owner who asked for it: the next start
    takes work again.
    """

    def __init__(
        self,
        core: ProviderCore,
        actor: Submits,
        announcements: Announcements,
        clock: Clock,
        marker: Path,
    ) -> None:
        self._core, self._actor, self._announcements, self._clock, self._marker = (
            core,
            actor,
            announcements,
            clock,
            marker,
        )
        # before, the journal is replayed: nobody was told anything, and what the owner asked for is
        # unknown
        self._has_begun = False

    async def announce(self) -> None:
        """Takes nothing any more, and coordinators hear that the offer is withdrawn, so that
        nobody is sent here.
        """
        if not self._has_begun:
            return
        if not self._core.facts.is_draining:
            self._marker.touch()
            await self._actor.submit(events.DrainRequested(True))
        await self._actor.submit(events.OfferDue())
        newest = self._core.facts.offer_seq
        try:
            # Beside the outbox, which nobody waits for: the daemon ends when this returns.
            await self._announcements.send_offer(Sequence(newest), WITHDRAWN, newest)
        except Unavailable as error:
            # Not re-raised: one that is away hears no heartbeats either, and forgets this provider
            # by itself.
            _logger.info("not every coordinator knows that this provider leaves: %s", error)
        await self._announcements.send_heartbeat(self._core.free_slots())

    async def drain(self) -> None:
        """Until nothing runs here. Whoever waits sets the bound."""
        if not self._has_begun:
            return
        await self.announce()
        while self._core.live():
            await self._clock.sleep(POLL_SECONDS)
        await self.end()

    async def end(self) -> None:
        """Takes back what `announce` did, also after a crash in the middle of it; what the owner
        asked for stays. Each start begins so.
        """
        self._has_begun = True
        if self._marker.exists():
            await self._actor.submit(events.DrainRequested(False))
            self._marker.unlink()
