"""Tests what the daemon does when it ends, and what the next start undoes of it."""

import asyncio
from pathlib import Path

import pytest

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.owner import leaving
from quorate_node.status.owner_requests import Drain
from quorate_runtime.process.health import Board
from support.markets.provider_world import Driver, make_terms
from support.virtual_clock import VirtualClock


@pytest.fixture
def driver() -> Driver:
    return Driver(ProviderCore(make_terms()))


class Daemon:
    """An actor that drops events until the journal is replayed.

    A real actor keeps them in its inbox. They are lost when its process ends.
    """

    def __init__(self, driver: Driver, is_replayed: bool = True) -> None:
        self._driver, self.is_replayed = driver, is_replayed

    async def submit(self, event: events.Event) -> object:
        return self._driver.do(event) if self.is_replayed else None


def make_drain(driver: Driver, daemon: Daemon, marker: Path) -> Drain:
    """Returns a drain without coordinators."""
    clock = VirtualClock()
    announcements = Announcements(driver.core, {}, None, clock)  # type: ignore[arg-type]
    return Drain(driver.core, daemon, announcements, clock, marker, Board(), asyncio.Event())


@pytest.mark.parametrize("drains", [False, True])
async def test_signal_during_replay_does_not_undo_what_the_owner_asked_for(
    driver: Driver, tmp_path: Path, drains: bool
) -> None:
    """Before the replay ends the daemon does not know that the owner drains. It must not note
    that it drained by itself.
    """
    daemon, marker = Daemon(driver, is_replayed=False), tmp_path / "stopping"
    first = make_drain(driver, daemon, marker)
    await (first.drain_for_exit() if drains else first.announce_exit())
    # the owner's earlier command, which comes with the replay
    driver.do(events.DrainRequested(True))
    daemon.is_replayed = True
    await make_drain(driver, daemon, marker).undo_exit()
    assert driver.core.scalars.is_draining and not marker.exists()


async def test_next_start_takes_work_again_after_the_daemon_drained_by_itself(
    driver: Driver, tmp_path: Path
) -> None:
    daemon, marker = Daemon(driver), tmp_path / "stopping"
    drain = make_drain(driver, daemon, marker)
    await drain.undo_exit()
    await drain.announce_exit()
    assert driver.core.scalars.is_draining and marker.exists()
    await make_drain(driver, daemon, marker).undo_exit()
    assert not driver.core.scalars.is_draining and not marker.exists()


@pytest.mark.parametrize("wish", [leaving.PAUSE, leaving.RESUME])
async def test_what_the_owner_asked_for_while_no_daemon_ran_is_done_at_the_next_start(
    driver: Driver, tmp_path: Path, wish: str
) -> None:
    daemon, marker = Daemon(driver), tmp_path / "stopping"
    driver.do(events.DrainRequested(wish == leaving.RESUME))
    leaving.put_wish(tmp_path, wish)
    await make_drain(driver, daemon, marker).undo_exit()
    assert driver.core.scalars.is_draining == (wish == leaving.PAUSE)
    assert not leaving.read_wish(tmp_path), "a later start does not do it again"


async def test_provider_that_leaves_takes_no_work_after_a_restart(
    driver: Driver, tmp_path: Path
) -> None:
    daemon, marker = Daemon(driver), tmp_path / "stopping"
    leaving.begin_leaving(tmp_path)
    await make_drain(driver, daemon, marker).undo_exit()
    assert driver.core.scalars.is_draining
