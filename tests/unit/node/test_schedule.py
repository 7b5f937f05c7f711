"""Tests the hours in which an owner offers the machine."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from quorate_node.base.schedule import Schedule, schedule_of
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.status.owner_requests import Drain
from quorate_node.status.status import OwnerFacts, why_nothing_is_on_offer
from quorate_protocol.refusals import Refused
from quorate_runtime.process.health import Board
from support.markets.provider_world import Driver, make_terms
from support.virtual_clock import VirtualClock, run_virtual

NIGHTS = "mon-fri 19:00-08:00, sat-sun"
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("moment", "is_open"),
    [
        ("2026-01-05 18:59", False),  # a Monday
        ("2026-01-05 19:00", True),
        ("2026-01-06 07:59", True),
        ("2026-01-06 08:00", False),
        ("2026-01-05 03:00", False),  # Sunday's window ends at midnight
        ("2026-01-10 12:00", True),
        ("2026-01-10 03:00", True),
    ],
)
def test_a_window_goes_on_behind_midnight(moment: str, is_open: bool) -> None:
    assert schedule_of(f"{NIGHTS} Europe/Berlin").is_open(at(moment)) == is_open


def test_the_clock_on_the_wall_counts_when_it_changes() -> None:
    nights = schedule_of("sat-sun 22:00-03:00 Europe/Berlin")
    assert nights.is_open(at("2026-03-29 01:59")), "at 02:00 it is 03:00"
    assert not nights.is_open(at("2026-03-29 01:59") + 60)
    assert nights.is_open(at("2026-10-25 02:30")) and nights.is_open(at("2026-10-25 02:30", fold=1))
    hours = sum(nights.is_open(at("2026-10-24 22:00") + 3600 * hour) for hour in range(12))
    assert hours == 6, "the hour that comes twice is open twice"


def test_it_says_when_it_opens() -> None:
    opens = schedule_of(f"{NIGHTS} Europe/Berlin").opens_at(at("2026-01-06 12:34"))
    assert opens.strftime("%a %H:%M") == "Tue 19:00"
    assert schedule_of("always") == schedule_of("") == Schedule()
    assert schedule_of("19:00-08:00, Sat-SUN") == schedule_of("mon-sun 19:00-08:00, sat-sun")
    assert schedule_of("").is_open(0) and Schedule().opens_at(0) == datetime.fromtimestamp(0, UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mon 10:00-10:00", "never opens; write 00:00-24:00"),
        ("mon 24:00-10:00", "never opens"),
        ("mon 10:00-25:00", "25:00 is no time"),
        ("mon 10:61-12:00", "10:61 is no time"),
        ("monday", "write days and hours"),
        ("mon-fre 10:00-12:00", "write days and hours"),
        ("mon,,tue", "write days and hours"),
        ("mon 10:00-12:00 Mars/Olympus", "no time zone Mars/Olympus"),
        ("mon UTC, tue Europe/Berlin", "one time zone, not Europe/Berlin and UTC"),
        (", ".join(["mon"] * 33), "at most 32 windows"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(Refused, match="schedule") as caught:
        schedule_of(text)
    assert told in caught.value.detail


class Sink:
    """Steps the core at once."""

    def __init__(self) -> None:
        self.driver = Driver(ProviderCore(make_terms()))

    async def submit(self, event: events.Event) -> object:
        return self.driver.do(event)


def test_outside_of_it_the_offer_is_withdrawn_and_a_pause_stays_the_owners(tmp_path: Path) -> None:
    async def day(clock: VirtualClock) -> None:
        sink, on_offer = Sink(), asyncio.Event()
        core, window = sink.driver.core, schedule_of("mon 10:00-12:00 UTC")
        announcements = Announcements(core, {}, None, clock)  # type: ignore[arg-type]
        on_offer.set()
        drain = Drain(core, sink, announcements, clock, tmp_path / "m", Board(), on_offer, window)
        await drain.undo_exit()
        assert core.is_withdrawn() and not core.scalars.is_draining
        facts = OwnerFacts(closed_until="Mon 10:00 UTC")
        told = why_nothing_is_on_offer(core, (), facts, is_connected=True)
        assert told == "outside of your schedule, which opens at Mon 10:00 UTC"
        task = asyncio.create_task(drain.follow_schedule())
        await clock.sleep(75)
        assert not core.is_withdrawn() and core.scalars.offer_seq, "a new offer was signed"
        await drain.set_by_owner(True)
        await clock.sleep(7200)
        assert core.scalars.is_outside_schedule
        await drain.set_by_owner(False)
        assert core.is_withdrawn(), "`resume` does not open the schedule"
        task.cancel()

    run_virtual(day, VirtualClock(at("2026-01-05 09:59", ZoneInfo("UTC"))))
