"""Tests a provider whose disk is full.

It once accepted an Assignment that it could not journal, and ended while other jobs ran.
"""

import asyncio
import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quorate_node import periodic
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.court_follower import CourtFollower
from quorate_node.periodic import ROOM_LEAST_BYTES, room_problem
from quorate_node.status.node_gateway import check_room
from quorate_node.status.status import status_of
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.refusals import Refused
from quorate_runtime.process.health import Board, Problem
from support.full_disks import fill_disks
from support.markets.provider_world import OPERATOR, make_terms
from support.virtual_clock import VirtualClock


@dataclass
class Announcements:
    """Announcements that change the disk after each heartbeat: it has space, then none, then
    space again.
    """

    board: Board
    sent: list[int] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_heartbeat(self, free: tuple[FreeSlots, ...]) -> int:
        self.sent.append(sum(item.free for item in free))
        self.board.put("disk", "0 MiB are free" if len(self.sent) == 1 else "")
        if len(self.sent) == 3:
            self.enough.set()
        return 1


async def test_no_slot_is_free_while_the_disk_is_full() -> None:
    board, core = Board(), ProviderCore(make_terms())
    announcements = Announcements(board)
    # the fake has only the method that the loop calls
    beats = asyncio.create_task(
        periodic.send_heartbeats(core, announcements, VirtualClock(), board)
    )  # type: ignore[arg-type]
    await announcements.enough.wait()
    beats.cancel()
    slots = sum(item.free for item in core.free_slots())
    assert slots and announcements.sent[:3] == [slots, 0, slots]


def test_status_shows_the_slots_that_heartbeats_offer() -> None:
    """The status once showed a free slot while heartbeats offered none."""
    core = ProviderCore(make_terms())
    shown = [
        status_of(core, OPERATOR.address, "", {}, (Problem(name, "x"),)).free_slots
        for name in ("chain", "disk", "room", "engine", "stake")
    ]
    assert shown == [(1,), (0,), (0,), (0,), (0,)]


def test_provider_whose_store_is_full_offers_nothing() -> None:
    """It once went on, and declined every job for its lack of room."""
    assert not room_problem(ROOM_LEAST_BYTES)
    assert "--store-size" in room_problem(ROOM_LEAST_BYTES - 1)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
TRIES_AN_HOUR = 1_800


async def test_status_file_that_cannot_be_written_is_logged_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The daemon once logged it every two seconds."""
    tries = 0

    def write() -> None:
        nonlocal tries
        tries += 1
        if tries == TRIES_AN_HOUR + 10:
            raise asyncio.CancelledError
        if tries != TRIES_AN_HOUR + 5:
            raise NO_SPACE

    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await periodic.write_status(write, VirtualClock())
    failed, again = (
        "the status file cannot be written: [Errno 28] No space left on device",
        "the daemon writes the status file again",
    )
    *first_hour, recovered, last = caplog.messages
    assert len(first_hour) == 6 and all(text.startswith(failed) for text in first_hour)
    assert first_hour[0] == failed and "more times since the last line" in first_hour[1]
    assert (recovered, last) == (again, failed)


class FailingChain:
    """A chain client that fails some times and then ends the test."""

    tries = 0

    async def head(self) -> None:
        self.tries += 1
        raise asyncio.CancelledError if self.tries > TRIES_AN_HOUR + 5 else NO_SPACE


async def test_court_that_cannot_be_followed_is_logged_ever_more_rarely(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # the follower asks the chain for nothing else
    court_follower = CourtFollower(  # type: ignore[arg-type]
        FailingChain(), None, None, VirtualClock(), tmp_path / "court.json"
    )
    with pytest.raises(asyncio.CancelledError):
        await court_follower.run()
    told = "this node cannot follow the court: [Errno 28] No space left on device"
    assert caplog.messages[0] == told and len(caplog.messages) == 6
    assert all(text.startswith(told) for text in caplog.messages)


def test_owners_command_on_a_full_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quorate node pause` once ended the daemon, because it could not be journaled."""
    check_room(tmp_path)
    fill_disks(monkeypatch)
    with pytest.raises(Refused, match=f"df -h {tmp_path}"):
        check_room(tmp_path)
