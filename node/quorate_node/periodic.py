"""Loops of the daemon: ticks, heartbeats, offers, status, health. Each is one of its tasks."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_node.core.provider_core import OFFER_NUMBERS, ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.market.coordinator_client import Coordinator
from quorate_node.status.status import NO_SLOT_IS_FREE
from quorate_protocol.messages.ports import Clock, Executor, Peers
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Sequence, UnixSeconds
from quorate_runtime.chain import ChainClient
from quorate_runtime.process.health import Board, chain_problem, disk_problem
from quorate_runtime.process.log_throttle import LogThrottle

TICK_SECONDS = 0.25
STATUS_SECONDS = 2.0
STORE_SECONDS = 30.0  # between looks at the content store's room
CHANGE_SECONDS = 1.0  # between looks at the free slots, for providers of several coordinators

log = logging.getLogger(__name__)


async def tick(core: ProviderCore, actor: EventSink, clock: Clock) -> None:
    """Only when something is due: the journal keeps every event."""
    while True:
        if core.next_due() <= clock.now():
            await actor.submit(events.Tick())
        await clock.sleep(TICK_SECONDS)


async def send_heartbeats(
    core: ProviderCore, announcements: Announcements, clock: Clock, board: Board | None = None
) -> None:
    """No slot is free while no job could run, as with a full disk. A provider of several
    coordinators sends one soon after its slots changed, so that no taken slot is assigned.
    """

    def offered() -> tuple[FreeSlots, ...]:
        return core.offered(can_work=board is None or not any(map(board.has, NO_SLOT_IS_FREE)))

    while True:
        free, sent_at = offered(), clock.now()
        await announcements.send_heartbeat(free)
        limits, is_shared = core.terms.limits, len(core.terms.statement_keys) > 1
        pause = min(CHANGE_SECONDS, limits.heartbeat_every) if is_shared else limits.heartbeat_every
        await clock.sleep(pause)
        while clock.now() < sent_at + limits.heartbeat_every and offered() == free:
            await clock.sleep(pause)


async def renew_offer(
    core: ProviderCore, actor: EventSink, announcements: Announcements, clock: Clock
) -> None:
    """Only first and changed offers are journaled; after a crash the start publishes a new one. The
    interval varies by a fifth, so that offers of many providers do not come at once.
    """
    await actor.submit(events.OfferDue())
    base, number = core.scalars.offer_seq, 0
    while True:
        period = core.terms.limits.offer_refresh * random.uniform(0.8, 1.2)
        await clock.sleep(period)
        if core.scalars.offer_seq != base:
            base, number = core.scalars.offer_seq, 0  # the offer has changed since
        number += 1
        if number >= OFFER_NUMBERS:
            await actor.submit(events.OfferDue())
        elif not core.is_withdrawn():
            await _refresh(core, announcements, clock, Sequence(base + number), period)


async def _refresh(
    core: ProviderCore, announcements: Announcements, clock: Clock, seq: Sequence, seconds: float
) -> None:
    """Until all coordinators have it, the offer changes or the time is over."""
    base, until = core.scalars.offer_seq, clock.now() + seconds / 2
    expires = UnixSeconds(int(clock.now()) + core.terms.limits.offer_ttl)
    while core.scalars.offer_seq == base and clock.now() < until:
        try:
            await announcements.send_offer(seq, expires, base)
            return
        except Unavailable as error:
            # Not re-raised: those that took it have it, and the others may come back.
            log.debug("the refresh of the offer is sent again: %s", error)
            await clock.sleep(max(1.0, error.retry_after))


async def watch_store(
    core: ProviderCore, actor: EventSink, room: Callable[[], Awaitable[int]], clock: Clock
) -> None:
    """Only if the offer says something else."""
    while True:
        await look_at_store(core, actor, room)
        await clock.sleep(STORE_SECONDS)


async def look_at_store(
    core: ProviderCore, actor: EventSink, room: Callable[[], Awaitable[int]]
) -> None:
    found = await room()
    if not core.has_store(found):
        await actor.submit(events.StoreRead(found))


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


CHECK_SECONDS = 5.0
ROOM_LEAST_BYTES = 64 << 20  # with less the provider would decline nearly every job


@dataclass(slots=True)
class HealthMonitor:
    """The task of the daemon that checks them. `chain_url` is only for messages."""

    board: Board
    executor: Executor
    client: ChainClient
    chain_url: str
    coordinators: Mapping[Address, Coordinator]
    peers: Mapping[Address, Peers]
    home: Path
    clock: Clock
    room: Callable[[], Awaitable[int]]  # bytes that can still be kept

    async def run(self) -> None:
        while True:
            await self.check()
            await self.clock.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        self.board.put("engine", await self._engine())
        self.board.put("chain", await self._chain())
        self.board.put("disk", await asyncio.to_thread(disk_problem, self.home))
        self.board.put("room", room_problem(await self.room()))
        away = [
            item.url
            for address, item in self.coordinators.items()
            if not self.peers[address].connected()
        ]
        self.board.put("coordinator", f"not connected to {', '.join(away)}" if away else "")

    async def _engine(self) -> str:
        """`Executor.check` might choose another sandbox than the one on offer."""
        try:
            await self.executor.leases()
        except (Unavailable, Refused) as error:
            return str(error)  # not re-raised: it is the result of the check
        return ""

    async def _chain(self) -> str:
        try:
            head = await self.client.head()
        except (Unavailable, Refused) as error:
            # not re-raised: it is the result of the check
            return f"{error}; look at the chain node at {self.chain_url}"
        return chain_problem(self.clock, UnixSeconds(head.time), self.chain_url)


def room_problem(room_bytes: int) -> str:
    """Empty while jobs have room in the content store."""
    if room_bytes >= ROOM_LEAST_BYTES:
        return ""
    return (
        f"{room_bytes >> 20} MiB are left for inputs and outputs: free disk space, or give more "
        "with `quorate node init --store-size SIZE`"
    )
