"""Loops of the daemon: ticks, heartbeats, offers, status. Each is one task of the daemon's
group.
"""

import logging
import random
from collections.abc import Callable

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.announcements import Announcements
from quorate_node.messaging.frame_handler import EventSink
from quorate_protocol.ports import Clock
from quorate_runtime.process.health import Board
from quorate_runtime.process.log_throttle import LogThrottle

TICK_SECONDS = 0.25
STATUS_SECONDS = 2.0

log = logging.getLogger(__name__)


async def tick(core: ProviderCore, actor: EventSink, clock: Clock) -> None:
    """Submits a Tick when something is due, and only then, because the journal keeps every
    event.
    """
    while True:
        if core.next_due() <= clock.now():
            await actor.submit(events.Tick())
        await clock.sleep(TICK_SECONDS)


async def send_heartbeats(
    core: ProviderCore, announcements: Announcements, clock: Clock, board: Board | None = None
) -> None:
    """Sends heartbeats with the free run slots. While the disk is full, no slot is free."""
    while True:
        await announcements.send_heartbeat(
            core.offered(has_disk_space=board is None or not board.has("disk"))
        )
        await clock.sleep(core.terms.limits.heartbeat_every)


async def renew_offer(core: ProviderCore, actor: EventSink, clock: Clock) -> None:
    """Publishes a new offer now, and again after a third of its lifetime.

    The interval varies by a fifth, so that the offers of many providers do not come at once.
    """
    while True:
        await actor.submit(events.OfferDue())
        await clock.sleep(core.terms.limits.offer_ttl / 3 * random.uniform(0.8, 1.2))


async def write_status(write: Callable[[], None], clock: Clock) -> None:
    """Writes the status file, for people and scripts that read it while the daemon is busy."""
    trouble = LogThrottle(log, clock)
    while True:
        try:
            write()
            trouble.recovered("the daemon writes the status file again")
        except OSError as error:
            # Not re-raised: the disk may have space again soon, and no decision depends on this
            # file.
            trouble.failed(f"the status file cannot be written: {error}")
        await clock.sleep(STATUS_SECONDS)
