"""A second daemon on a folder is refused, with the folder and process id, before it changes a
file.
"""

import os
from pathlib import Path

import pytest

from quorate_runtime.actor.journal_port import JournalBusy
from quorate_runtime.journal.journal import Journal
from support.markets.coordinator_stage import deployed_stage
from support.markets.scripted_coordinator import stage


def files(home: Path) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {
        str(path.relative_to(home)): path.stat().st_mtime_ns
        for path in home.rglob("*")
        if path.is_file()
    }


async def test_second_provider_on_a_folder_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as market:
        first = Journal.open(market.home / "journal")
        (market.home / "store").mkdir()
        (market.home / "store" / "half.part").write_bytes(b"what the first one is fetching")
        before = files(market.home)
        with pytest.raises(
            JournalBusy,
            match=rf"{market.home}/journal is in use by another process \(pid {os.getpid()}\)",
        ):
            await market.daemon(market.coordinator.url).run()
        changed = {name for name, at in files(market.home).items() if before.get(name) != at}
        assert all(name.startswith("coordinators/") for name in changed), changed
        await first.close()


async def test_second_coordinator_on_a_folder_is_refused(tmp_path: Path) -> None:
    async with deployed_stage(tmp_path) as found:
        found.home.mkdir(parents=True, exist_ok=True)
        first = Journal.open(found.home / "journal")
        before = files(found.home)
        with pytest.raises(
            JournalBusy,
            match=rf"{found.home}/journal is in use by another process \(pid {os.getpid()}\)",
        ):
            await found.service().run()
        assert files(found.home) == before
        await first.close()
