"""Submits the coordinator's own events: its restart, ticks, beacon rounds."""

from dataclasses import dataclass

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.journal_comparison import JournalComparison
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_runtime.actor.actor import Actor
from quorate_runtime.process.health import Board

TICK_SECONDS = 0.5


@dataclass(slots=True)
class OwnEvents:
    """Submits events that must not be lost."""

    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    board: Board
    clock: Clock

    async def submit(self, event: ev.Event) -> None:
        """Submits an event, and tries again while too many effects wait.

        Effects wait when a disk is full or the chain does not answer. Ending the process would not
        help: after the next start they would wait too.
        """
        while True:
            try:
                await self.actor.submit(event)
            except Unavailable as error:
                # Not re-raised: `health` shows it until the outbox has made room.
                self.board.put("outbox", str(error))
                await self.clock.sleep(TICK_SECONDS)
            else:
                self.board.put("outbox")
                return

    async def tick(self, comparison: JournalComparison) -> None:
        """Submits a tick again and again until cancelled. Submits `Compared` once the journal was
        compared with what others know.
        """
        await comparison.wait()
        comparison.trust()
        is_noted = False
        while True:
            if comparison.compared.is_set() and not is_noted:
                is_noted = True
                await self.submit(ev.Compared())
            if self.core.needs_tick(int(self.clock.now())):
                await self.submit(ev.Tick())
            await self.clock.sleep(TICK_SECONDS)
