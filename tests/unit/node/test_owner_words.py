"""Tests what the owner is told about stake, prices, pauses, and folders without a provider."""

import asyncio
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate_contracts.account.goals import StakeSlot
from quorate_devnet.market.genesis import give
from quorate_node.base.dates import until_text
from quorate_node.base.settings import devnet_coordinator
from quorate_node.cli.app import app
from quorate_node.cli.control import health_lines
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.announcements import Announcements
from quorate_node.market_entry import registered_text
from quorate_node.owner import leaving
from quorate_node.owner.account_state import AccountState
from quorate_node.owner.stake_release import look_pause, slot_news
from quorate_node.status.owner_requests import Drain, PriceChange
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.money_input import micro_usd
from quorate_protocol.units import ZERO_HASH, Amount, BlockNumber, Price, UnixSeconds
from quorate_runtime.process.health import Board
from support.markets.provider_world import PROVIDER, Driver, make_terms
from support.virtual_clock import VirtualClock

NOW = 1_700_000_000


def slot(back_at: int) -> StakeSlot:
    return StakeSlot(ZERO_HASH, 0, BlockNumber(1), UnixSeconds(back_at))


def test_daemon_sees_soon_which_slots_a_command_closed() -> None:
    """A daemon that looked rarely left the stake on chain long after its date."""
    assert look_pause((), NOW, DEVNET.unbond_after) <= 30
    assert look_pause((), NOW, MAINNET.unbond_after) <= 300
    assert look_pause((slot(NOW + 7),), NOW, DEVNET.unbond_after) == 7
    frozen = look_pause((slot(NOW - 7),), NOW, DEVNET.unbond_after)
    assert 5 < frozen <= 30, "it does not ask each second while a court case is open"


def test_owner_is_told_when_a_slot_is_closed_and_when_its_stake_is_back() -> None:
    opened, closed, gone = (
        AccountState(PROVIDER, slots=slots) for slots in ((slot(0),), (slot(NOW + 180),), ())
    )
    stake = Amount(100_000_000)
    assert slot_news(None, opened, stake, NOW) == []
    assert slot_news(closed, closed, stake, NOW) == []
    assert slot_news(opened, closed, stake, NOW) == [
        "stake slot closed: its 100.00 USD come back at 2023-11-14 22:16:20 UTC"
    ]
    assert slot_news(closed, gone, stake, NOW) == ["stake is back: 100.00 USD"]


def test_near_dates_have_seconds_and_past_ones_are_due() -> None:
    assert until_text(NOW + 180, NOW) == "until 2023-11-14 22:16:20 UTC"
    assert until_text(NOW + 7200, NOW) == "until 2023-11-15 00:13 UTC"
    assert until_text(NOW, NOW) == "due now"


async def test_daemon_says_what_the_owner_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quorate_node")
    driver, on_offer, clock = Driver(ProviderCore(make_terms())), asyncio.Event(), VirtualClock()

    class Sink:
        """Steps the core at once."""

        async def submit(self, event: object) -> object:
            return driver.do(event)  # type: ignore[arg-type]

    announcements = Announcements(driver.core, {}, None, clock)  # type: ignore[arg-type]
    marker = tmp_path / "stopping"
    drain = Drain(driver.core, Sink(), announcements, clock, marker, Board(), on_offer)
    await PriceChange(driver.core, Sink(), on_offer).set_by_owner(Price(350_000))
    await drain.set_by_owner(True)
    await drain.set_by_owner(True)
    await drain.set_by_owner(False)
    leaving.begin_leaving(tmp_path)
    await drain.set_by_owner(True)
    told = [text.removeprefix("the owner's command: ") for text in caplog.messages]
    assert told == [
        "the owner changed the price: 0.35 USD per slot-hour",
        "paused: finishes its jobs, and takes no more",
        "resumed: takes jobs again",
        "leaving: finishes its jobs, and takes no more",
    ]


@pytest.mark.parametrize(
    "words",
    ["check", "status", "health", "up", "pause", "resume", "price 0.2", "leave", "withdraw"],
)
def test_folder_without_a_provider_is_named_with_the_next_command(
    tmp_path: Path, words: str
) -> None:
    home = tmp_path / "typo"
    result = CliRunner().invoke(app, [*words.split(), "--home", str(home)])
    text = result.stderr + result.stdout
    assert result.exit_code and f"there is no provider in {home}" in text
    assert f"quorate node init --home {home} --coordinator URL" in text


async def test_devnet_funds_no_folder_without_keys() -> None:
    with pytest.raises(ValueError, match="no provider, coordinator or client in typo: .*node init"):
        await give({}, ["typo"], 1)


def test_health_says_that_the_owner_paused_or_leaves() -> None:
    engine = [{"name": "engine", "text": "no Docker"}]
    assert health_lines("0x12", [], "") == ["ready: provider 0x12"]
    assert health_lines("0x12", [], "paused") == ["ready: provider 0x12; paused: takes no new work"]
    assert health_lines("0x12", engine, "leaving") == [
        "engine: no Docker",
        "leaving: takes no new work",
    ]


def test_start_says_whether_the_provider_was_registered_before() -> None:
    assert registered_text(True, 1) == "already registered, 1 stake slot open"
    assert registered_text(False, 2) == "registered, 2 stake slots open"


def test_too_small_price_names_the_smallest() -> None:
    with pytest.raises(ValueError, match="write at least 0.000001"):
        micro_usd("0.00000001")


def test_folder_of_a_devnet_stands_for_its_file(tmp_path: Path) -> None:
    (tmp_path / "devnet.json").write_text('{"coordinator":{"url":"http://127.0.0.1:1/"}}')
    assert devnet_coordinator(tmp_path) == "http://127.0.0.1:1"
