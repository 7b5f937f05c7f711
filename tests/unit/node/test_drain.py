"""How a provider goes, and what of it its next start takes back: only what the daemon itself
did.
"""

from pathlib import Path

import pytest

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.announcements import Announcements
from quorate_node.ops.drain import Leaving
from quorate_runtime.clock import VirtualClock
from support.markets.provider_world import Driver, make_terms


class Daemon:
    """The actor, as far as leaving needs it. What comes before the replay waits, as in the
    actor's inbox, and is gone with the process.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver, self.is_replayed = driver, False

    async def submit(self, event: events.Event) -> object:
        return self._driver.do(event) if self.is_replayed else None


@pytest.mark.parametrize("drains", [False, True])
async def test_a_signal_in_the_middle_of_the_replay_does_not_end_what_the_owner_asked_for(
    tmp_path: Path, drains: bool
) -> None:
    """Nothing is known yet then; it was noted that the daemon had drained by itself, and the
    next start took work again.
    """
    driver, marker = Driver(ProviderCore(make_terms())), tmp_path / "stopping"
    daemon = Daemon(driver)
    # there is nobody to tell
    announcements = Announcements(driver.core.terms, None, {}, None, VirtualClock())  # type: ignore[arg-type]
    first = Leaving(driver.core, daemon, announcements, VirtualClock(), marker)
    await (first.drain() if drains else first.announce())
    driver.do(events.DrainRequested(True))  # the owner's, of long ago: the second start replays it
    daemon.is_replayed = True
    second = Leaving(driver.core, daemon, announcements, VirtualClock(), marker)
    await second.end()
    assert driver.core.facts.is_draining and not marker.exists()


async def test_what_the_daemon_did_is_taken_back(tmp_path: Path) -> None:
    driver, marker = Driver(ProviderCore(make_terms())), tmp_path / "stopping"
    daemon = Daemon(driver)
    daemon.is_replayed = True
    # there is nobody to tell
    announcements = Announcements(driver.core.terms, None, {}, None, VirtualClock())  # type: ignore[arg-type]
    leaving = Leaving(driver.core, daemon, announcements, VirtualClock(), marker)
    await leaving.end()
    await leaving.announce()
    assert driver.core.facts.is_draining and marker.exists()
    await Leaving(driver.core, daemon, announcements, VirtualClock(), marker).end()
    assert not driver.core.facts.is_draining and not marker.exists()
