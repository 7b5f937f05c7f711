"""Ends rentals that nobody uses, after the time that their client chose.

It stops the container, as the end of its program would: the rental's machine then sends the last
meter. What was used before this program started is not known, so its start counts as use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from quorate_node.core.phases import Execution, Live
from quorate_node.core.provider_core import ProviderCore
from quorate_node.executors.base.inside import Inside
from quorate_node.machine.gpu_manners import GpuUse
from quorate_node.rentals.ssh_server import SshServer
from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32, Seconds

LOOK_SECONDS = 5.0
WARN_SECONDS = 300
BUSY_PERCENT = 5
log = logging.getLogger(__name__)


class Due(Enum):
    """What an idle rental's time asks for."""

    NOTHING = auto()
    WARNING = auto()
    STOP = auto()


def due(idle_seconds: float, idle_stop: Seconds) -> Due:
    """`idle_stop` 0: never."""
    if not idle_stop:
        return Due.NOTHING
    if idle_seconds >= idle_stop:
        return Due.STOP
    warned_at = max(idle_stop - WARN_SECONDS, idle_stop / 2)
    return Due.WARNING if idle_seconds >= warned_at else Due.NOTHING


def is_busy(gpus: tuple[str, ...], uses: Mapping[str, GpuUse]) -> bool:
    """A GPU that does not say what it does counts as idle."""
    return any(uuid in uses and uses[uuid].percent >= BUSY_PERCENT for uuid in gpus)


def unwatched_seconds(limits: Limits) -> float:
    """A container goes so long after its daemon: its rental has ended by then (PROTOCOL 12.13)."""
    return 1.5 * limits.rental_ahead


@dataclass
class IdleWatch:
    """`stop` ends a container by its lease id."""

    core: ProviderCore
    server: SshServer
    inside: Inside
    stop: Callable[[str], Awaitable[None]]
    read_gpu_use: Callable[[], tuple[GpuUse, ...]]
    clock: Clock
    _busy_at: dict[Hash32, float] = field(default_factory=dict)  # or when it was seen first
    _warned: set[Hash32] = field(default_factory=set)
    _gives_way: set[Hash32] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("idle rentals: %s", error)
            await self.clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        rentals = [item for item in self.core.live() if isinstance(item.phase, Live)]
        live = {item.assignment_hash for item in rentals}
        self._busy_at = {lease: at for lease, at in self._busy_at.items() if lease in live}
        self._warned &= live
        self._gives_way &= live
        self.server.forget_all_but(live)
        unwatched = unwatched_seconds(self.core.terms.limits)
        for item in rentals:
            await asyncio.to_thread(self.inside.keep_for, item.lease_id, unwatched)
            await self._tell_of_owner(item)
        watched = [item for item in rentals if item.spec.idle_stop]
        has_gpus = any(item.gpus for item in watched)
        uses = await asyncio.to_thread(self.read_gpu_use) if has_gpus else ()
        for rental in watched:
            await self._look_at(rental, {use.uuid: use for use in uses})

    async def _look_at(self, rental: Execution, uses: Mapping[str, GpuUse]) -> None:
        lease, now = rental.assignment_hash, self.clock.now()
        if lease not in self._busy_at or is_busy(rental.gpus, uses):
            self._busy_at[lease] = now
        idle = now - max(self._busy_at[lease], self.server.used_at(lease))
        idle_stop = rental.spec.idle_stop
        match due(idle, idle_stop):
            case Due.NOTHING:
                self._warned.discard(lease)
            case Due.WARNING:
                if lease not in self._warned:
                    self._warned.add(lease)
                    await self._tell(rental, f"it will end in {round(idle_stop - idle)} s")
            case Due.STOP:
                await self._tell(rental, "it ends now")
                await self.stop(rental.lease_id)

    async def _tell_of_owner(self, rental: Execution) -> None:
        """A spot rental that gives way has some seconds (PROTOCOL 12.38)."""
        assert isinstance(rental.phase, Live)
        ends_at, lease = rental.phase.gives_way_at, rental.assignment_hash
        if ends_at and lease not in self._gives_way:
            self._gives_way.add(lease)
            seconds = max(0, round(ends_at - self.clock.now()))
            text = f"quorate: {rental.phase.gives_way_to}; this rental ends in {seconds} s"
            self.server.warn(lease, text)
            await self.inside.note(rental.lease_id, text)

    async def _tell(self, rental: Execution, what: str) -> None:
        text = f"quorate: nobody uses this rental; {what} (idleStop)"
        log.info("rental %s: %s", rental.lease_id, text)
        self.server.warn(rental.assignment_hash, text)
        await self.inside.note(rental.lease_id, text)
