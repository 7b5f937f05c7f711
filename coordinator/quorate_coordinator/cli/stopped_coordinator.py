"""The state of a coordinator that does not run, for commands that need what its journal knows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate_coordinator.base.config import Config, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.events import Event
from quorate_coordinator.service import rules_of
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream


@dataclass(frozen=True, slots=True)
class Stopped:
    """What the journal says at its end."""

    core: CoordinatorCore
    actor: Actor[Event, Effect]


@asynccontextmanager
async def stopped(
    folder: Path, settings: Settings, keys: CoordinatorKeys
) -> AsyncIterator[Stopped]:
    """Yields the replayed state, and keeps others from it. Raises JournalBusy while `coordinator
    up` runs.
    """
    config = Config.of(settings, folder)
    journal = Journal.open(folder / "journal")
    try:
        core = CoordinatorCore(rules_of(config, keys))
        codec: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
        actor = Actor(core, journal, SystemClock(), codec, SecretStream())
        actor.bind(_never)
        await actor.start()
        yield Stopped(core, actor)
    finally:
        await journal.close()


async def _never(effect: Effect) -> None:
    raise AssertionError(f"{effect.key}: nothing is performed here")
