"""A missing or damaged snapshot costs nothing: the older one and later events give the state.

If that is impossible, the daemon says what is wrong.
"""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from quorate_protocol.codec import packed
from quorate_protocol.units import Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.actor import Actor
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_port import JournalDamaged, JournalError, Record
from support.journal.ledger_core import Effect, Event, Ledger, Paid, ledger_codec

EVENTS, SNAPSHOT_EVERY = 57, 10


async def _nothing(effect: Effect) -> None:
    return None


async def live(folder: Path, events: int) -> tuple[bytes, int]:
    """Runs a daemon once; returns its state at the start, and how many events it knew."""
    journal = Journal.open(folder)
    try:
        actor: Actor[Event, Effect] = Actor(
            Ledger(),
            journal,
            SystemClock(),
            ledger_codec(),
            lambda: Hash32(os.urandom(32)),
            snapshot_every=SNAPSHOT_EVERY,
        )
        actor.bind(_nothing)
        await actor.start()
        state, known = actor.core.snapshot(), journal.last_offset
        running = asyncio.create_task(actor.run())
        for number in range(events):
            await actor.submit(Paid(f"caller {number % 3}", Amount(1)))
        last = actor.core.snapshot() if events else state
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await journal.close()
    return last, known


def change(folder: Path, statement: str) -> None:
    """Changes rows, as a failing disk or a careless person would."""
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM snapshots WHERE offset = (SELECT max(offset) FROM snapshots)",
        "UPDATE snapshots SET payload = x'00' WHERE offset = (SELECT max(offset) FROM snapshots)",
        (
            "UPDATE snapshots SET checksum = checksum + 1 WHERE offset = (SELECT max(offset) FROM "
            "snapshots)"
        ),
        "DELETE FROM snapshots WHERE offset = (SELECT min(offset) FROM snapshots)",
    ],
)
async def test_one_snapshot_that_is_missing_or_damaged_costs_nothing(
    tmp_path: Path, damage: str
) -> None:
    state, _ = await live(tmp_path / "j", EVENTS)
    change(tmp_path / "j", damage)
    assert await live(tmp_path / "j", 0) == (state, EVENTS)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE snapshots SET payload = x'00'", "neither does a newer one"),
        ("DELETE FROM snapshots", "event 1 is missing"),
    ],
)
async def test_missing_events_without_any_snapshot_are_reported(
    tmp_path: Path, damage: str, told: str
) -> None:
    await live(tmp_path / "j", EVENTS)
    change(tmp_path / "j", damage)
    with pytest.raises(JournalDamaged, match=told):
        await live(tmp_path / "j", 0)


@pytest.mark.parametrize(
    ("form", "version", "told"),
    [
        (
            packed.encode({"type": "SomethingToCome"}),
            2,
            "event 1 in the journal was written by another version.*Nothing was changed",
        ),
        (packed.encode({}), 7, "event 1 in the journal.*version 7, and this program reads 2"),
    ],
)
async def test_journal_of_another_version_is_reported_and_left_unchanged(
    tmp_path: Path, form: bytes, version: int, told: str
) -> None:
    """Once the daemon reported a bad request of a peer instead, or ended with a traceback."""
    journal = Journal.open(tmp_path / "j")
    await journal.append(Record(version, UnixSeconds(1), Hash32(bytes(32)), form))
    await journal.close()
    before = (tmp_path / "j" / "journal.db").read_bytes()
    with pytest.raises(JournalError, match=told):
        await live(tmp_path / "j", 0)
    assert (tmp_path / "j" / "journal.db").read_bytes() == before


async def test_snapshot_with_tables_of_another_version_is_reported(tmp_path: Path) -> None:
    await live(tmp_path / "j", EVENTS)
    journal = Journal.open(tmp_path / "j")
    found = journal.load_snapshot()
    assert found is not None
    await journal.save_snapshot(
        replace(
            found,
            offset=journal.last_offset,
            payload=found.payload[:8] + packed.encode({"tables to come": []}),
        )
    )
    await journal.close()
    with pytest.raises(
        JournalError, match="the snapshot at event 57 in the journal was written by another version"
    ):
        await live(tmp_path / "j", 0)
