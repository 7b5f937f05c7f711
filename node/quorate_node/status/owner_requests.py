"""What the owner asks of a running daemon: no new work, or another price.

The daemon takes no new work either when it ends. By default running jobs go on without it, and the
next daemon on this home attaches to them. In some places they cannot: when a container ends,
bubblewrap jobs inside it end too. There the owner gives `--drain-time`.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from quorate_node.base.gpu_settings import ALL, SIZE_MAX, GpuPrice, with_price
from quorate_node.base.schedule import Schedule
from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import RunSlots
from quorate_node.machine.gpu_slots import price_of
from quorate_node.market.announcements import Announcements
from quorate_node.owner import leaving
from quorate_node.status.status import NO_SLOT_IS_FREE
from quorate_protocol.messages.offer import PRICE_MAX, WITHDRAWN
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32, Price, Sequence, usd
from quorate_protocol.values import replace
from quorate_runtime.process.health import Board

POLL_SECONDS = 0.2
SCHEDULE_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    """Takes no work, for the owner or at the end. A marker file says that the daemon drained by
    itself; then the next start takes work again.
    """

    core: ProviderCore
    actor: EventSink
    announcements: Announcements
    clock: Clock
    marker: Path
    board: Board
    is_on_offer: asyncio.Event
    schedule: Schedule = Schedule()
    # Before the journal is replayed the daemon does not know whether the owner asked for draining,
    # and no coordinator has heard of this start.
    _is_replayed: bool = False
    _told: str = ""

    async def set_by_owner(self, is_on: bool) -> None:
        """Withdraws the offer, or publishes it again if the provider is registered."""
        self._tell(is_on)
        await self.actor.submit(events.DrainRequested(is_on))
        await self._announce(is_on)

    async def evict(self, lease: Hash32, why: str) -> None:
        """Ends a rental, for example after a report of abuse. Raises Refused(UNKNOWN)."""
        await self.actor.submit(events.EvictRequested(lease, f"its owner ends it: {why}"))
        log.info("rental 0x%s ends: %s", lease.hex(), why)

    async def follow_schedule(self) -> None:
        """Withdraws the offer outside of the owner's hours, as a pause does."""
        while True:
            if await self._look_at_schedule():
                await self._announce(self.core.scalars.is_outside_schedule)
            await self.clock.sleep(SCHEDULE_SECONDS)

    async def _look_at_schedule(self) -> bool:
        """Returns whether it opened or closed since the last look."""
        is_open = self.schedule.is_open(self.clock.now())
        if is_open != self.core.scalars.is_outside_schedule:
            return False
        log.info("your schedule %s", "opens: takes jobs" if is_open else "closes: takes no new job")
        await self.actor.submit(events.ScheduleRead(is_open))
        return True

    async def _announce(self, is_withdrawn: bool) -> None:
        if is_withdrawn or self.is_on_offer.is_set():
            await self.actor.submit(events.OfferDue())
        await self.announcements.send_heartbeat(
            self.core.offered(can_work=not any(map(self.board.has, NO_SLOT_IS_FREE)))
        )

    def _tell(self, is_on: bool) -> None:
        """Once: `leave --wait` asks again and again."""
        if is_on:
            is_leaving = leaving.is_leaving(self.marker.parent)
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
        if not self.core.scalars.is_draining:
            self.marker.touch()
            await self.actor.submit(events.DrainRequested(True))
        await self.actor.submit(events.OfferDue())
        newest = self.core.scalars.offer_seq
        try:
            # Sent here as well, because the daemon ends when this returns and does not wait for the
            # outbox.
            await self.announcements.send_offer(Sequence(newest), WITHDRAWN, newest)
        except Unavailable as error:
            # Not re-raised: a coordinator that cannot be reached gets no heartbeats either, so it
            # stops assigning work.
            # A provider that was never on offer has nothing to withdraw.
            level = logging.INFO if self.is_on_offer.is_set() else logging.DEBUG
            log.log(level, "not every coordinator knows that this provider ends: %s", error)
        await self.announcements.send_heartbeat(self.core.free_slots())

    async def drain_for_exit(self) -> None:
        """Returns when nothing runs. The caller limits the wait."""
        if not self._is_replayed:
            return
        await self.announce_exit()
        while self.core.live():
            await self.clock.sleep(POLL_SECONDS)
        await self.undo_exit()

    async def undo_exit(self) -> None:
        """Takes `announce_exit` back, after each replay; the owner's wish stays."""
        self._is_replayed = True
        if self.marker.exists():
            await self.actor.submit(events.DrainRequested(False))
            self.marker.unlink(missing_ok=True)
        home = self.marker.parent
        wish = leaving.read_wish(home)
        if wish or leaving.is_leaving(home):
            is_on = wish == leaving.PAUSE or leaving.is_leaving(home)
            await self.actor.submit(events.DrainRequested(is_on))
            leaving.forget_wish(home)
        await self._look_at_schedule()  # before the first offer


@dataclass(slots=True)
class PriceChange:
    """Journals a new price and publishes the offer. `node.json` decides after a restart, so its
    command writes it first.
    """

    core: ProviderCore
    actor: EventSink
    is_on_offer: asyncio.Event
    gpu_prices: tuple[GpuPrice, ...] = ()

    async def set_by_owner(self, price: Price, gpu: str = "") -> None:
        """Millionths of a USD per hour, of a CPU slot or of one GPU ("all": without a price of
        their own; "": CPU slots). Running leases keep their price. Raises `Refused(BAD_AMOUNT)` for
        0, below the floor or above the bound, `Refused(UNKNOWN)` for a GPU not on offer.
        """
        terms = self.core.terms
        least, most = max(1, terms.policy.price_floor), PRICE_MAX // (SIZE_MAX if gpu else 1)
        if not least <= price <= most:
            raise Refused(
                Code.BAD_AMOUNT,
                f"price: {usd(price)} USD is not between {usd(least)} and {usd(most)} per "
                f"{'GPU' if gpu else 'slot'}-hour; choose another, or lower the floor with "
                "`quorate node init --price-floor`",
            )
        if gpu:
            classes = self._with_gpu_price(
                terms.classes, GpuPrice(price, "" if gpu == ALL else gpu)
            )
        else:
            classes = tuple(item if item.groups else _priced(item, price) for item in terms.classes)
        await self.actor.submit(events.Configured(replace(terms, classes=classes)))
        each = f"GPU-hour of {gpu}" if gpu else "slot-hour"
        log.info("the owner changed the price: %s USD per %s", usd(price), each)
        if self.is_on_offer.is_set():
            await self.actor.submit(events.OfferDue())

    def _with_gpu_price(self, classes: tuple[RunSlots, ...], new: GpuPrice) -> tuple[RunSlots, ...]:
        if not any(item.groups and price_of(item.offer.gpu, (new,)) for item in classes):
            raise Refused(
                Code.UNKNOWN,
                f"gpu: no slot with a GPU called {new.model!r} is on offer; `quorate node status` "
                "shows the slots, and the price counts from the next start",
            )
        self.gpu_prices = with_price(self.gpu_prices, new)
        return tuple(
            _priced(item, price_of(item.offer.gpu, self.gpu_prices)) if item.groups else item
            for item in classes
        )


def _priced(item: RunSlots, price: Price) -> RunSlots:
    count = item.offer.pool.gpus if item.groups else 1
    return replace(item, offer=item.offer.at_price(Price(price * count)))
