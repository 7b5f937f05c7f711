"""Tells the core which GPUs the driver lists: at the start, every few seconds, and after each task.

A GPU can fall off its bus while a job runs. The job's program then fails or returns something
wrong, and must not be committed. So a task that had GPUs is reported as ended only after the driver
was asked once more.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from quorate_node.core import events
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import Clock, GpuProbe
from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.health import Board

LOOK_SECONDS = 10.0
TRIES = 3  # of a driver that does not answer, before its GPUs count as gone
RETRY_SECONDS = 1.0
REMEDY = "look at `nvidia-smi` and the kernel's log, and restart the machine"

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """The one method of the actor that this part needs."""

    async def submit(self, event: events.Event) -> object: ...


class GpuWatch:
    """Submits changes. `named`: the offered GPUs, of which the owner is told when gone."""

    def __init__(
        self,
        probe: GpuProbe,
        actor: EventSink,
        clock: Clock,
        board: Board,
        named: Callable[[], frozenset[str]],
    ) -> None:
        self._probe, self._actor, self._clock, self._board = probe, actor, clock, board
        self._named = named
        self._listed: frozenset[str] | None = None  # as submitted last
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Returns when the journal has what has changed."""
        async with self._turn:
            listed = uuids_of(await self._inventory())
            if listed == self._listed:
                return
            self._tell(listed)
            await self._actor.submit(events.GpusRead(tuple(sorted(listed))))
            self._listed = listed

    async def _inventory(self) -> GpuInventory:
        """Nothing if the driver does not answer several times in a row."""
        for _ in range(TRIES):
            try:
                return await asyncio.to_thread(self._probe.inventory)
            except Unavailable as error:
                # Not re-raised: after the last try the GPUs count as gone.
                log.warning("GPUs: %s", error)
            await self._clock.sleep(RETRY_SECONDS)
        return GpuInventory()

    def _tell(self, listed: frozenset[str]) -> None:
        gone = sorted(self._named() - listed)
        if not gone:
            self._board.put("gpu")
            return
        text = f"GPU {', '.join(gone)} is gone and is not offered; {REMEDY}"
        log.error("%s", text)
        self._board.put("gpu", text)


def uuids_of(inventory: GpuInventory) -> frozenset[str]:
    """UUIDs of all GPUs and partitions of an inventory."""
    whole = frozenset(device.uuid for device in inventory.devices)
    return whole | {part.uuid for device in inventory.devices for part in device.partitions}
