"""Tests damage to the journal: a cut or changed file or WAL, and lost snapshots."""

import asyncio
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from quorate_protocol.codec import packed
from quorate_protocol.units import Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.journal_port import (
    JournalDamaged,
    JournalError,
    Pending,
    Record,
    Snapshot,
    Stored,
)
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from support.journal.ledger_core import Effect, Event, Ledger, Paid, ledger_codec
from support.journal.torn_files import damages, files_of, restore

EVENTS, BATCH = 120, 8
STRIDE = 4091  # a prime below the page size: each cut falls on another part of a page
SNAPSHOTS = (40, 80)


@dataclass(frozen=True, slots=True)
class Told:
    """What a daemon reads from the journal at its start."""

    snapshot: Snapshot | None
    events: tuple[Stored, ...]
    pending: tuple[Pending, ...]


def record(number: int) -> Record:
    return Record(
        1,
        UnixSeconds(1000 + number),
        Hash32(number.to_bytes(32, "big")),
        b"event %d " % number * 30,
    )


async def filled(folder: Path) -> tuple[Told, dict[str, bytes]]:
    """Writes a journal with events, effects, marks and snapshots.

    Returns what its daemon knows, and the files while it still runs, with a WAL, as a power cut
    leaves them.
    """
    journal = Journal.open(folder)
    for start in range(1, EVENTS + 1, BATCH):
        await asyncio.gather(
            *(
                journal.append(record(n), [(f"k{n}", b"effect %d " % n * 5)])
                for n in range(start, start + BATCH)
            )
        )
        if start + BATCH - 1 in SNAPSHOTS:
            await journal.mark_done([f"k{n}" for n in range(1, start + BATCH) if n % 3])
            await journal.save_snapshot(Snapshot(start + BATCH - 1, 1, b"state %d " % start * 50))
    told, files = read(journal), files_of(folder)
    await journal.close()
    return told, files


def read(journal: Journal) -> Told:
    snapshot = journal.load_snapshot()
    return Told(
        snapshot,
        tuple(journal.replay(snapshot.offset if snapshot else 0)),
        tuple(journal.pending_effects()),
    )


async def opened(folder: Path) -> Told:
    journal = Journal.open(folder)
    try:
        return read(journal)
    finally:
        await journal.close()


async def test_a_main_file_torn_anywhere_is_whole_or_refused_by_name(tmp_path: Path) -> None:
    told, _ = await filled(tmp_path / "j")
    files, refused, whole = files_of(tmp_path / "j"), 0, 0
    assert "journal.db-wal" not in files, "closing wrote the WAL back"
    for what, data in damages(files["journal.db"], 1):
        restore(tmp_path / "j", files | {"journal.db": data})
        try:
            found = await opened(tmp_path / "j")
        except JournalError as error:
            assert "journal.db" in str(error), f"{what}: {error}"
            refused += 1
        else:
            assert found == told, what
            whole += 1
    assert refused > 100 and whole > 0, (refused, whole)


async def test_a_wal_torn_anywhere_leaves_what_was_before_it(tmp_path: Path) -> None:
    """The events before the damage are there. Nothing after it is ever read as an event."""
    told, files = await filled(tmp_path / "j")
    events = {stored.offset: stored for stored in told.events}
    counts, before = [], -1
    for what, data in damages(files["journal.db-wal"], 2, STRIDE):
        restore(tmp_path / "j", files | {"journal.db-wal": data})
        found = await opened(tmp_path / "j")
        offsets = [stored.offset for stored in found.events]
        first = found.snapshot.offset if found.snapshot else 0
        assert offsets == list(range(first + 1, first + 1 + len(offsets))), what
        assert all(
            stored == events[stored.offset] for stored in found.events if stored.offset in events
        ), what
        assert all(
            item.payload == b"effect %d " % item.offset * 5 and item.key == f"k{item.offset}"
            for item in found.pending
        ), what
        last = offsets[-1] if offsets else first
        if what.startswith("cut"):
            assert last >= before, f"{what}: a longer WAL has less in it"
            before = last
        counts.append(last)
    assert min(counts) == 0 and len(set(counts)) > 5 and max(counts) >= EVENTS - BATCH, sorted(
        set(counts)
    )
    restore(tmp_path / "j", files)
    assert await opened(tmp_path / "j") == told


WRITTEN, SNAPSHOT_EVERY = 57, 10


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
    state, _ = await live(tmp_path / "j", WRITTEN)
    change(tmp_path / "j", damage)
    assert await live(tmp_path / "j", 0) == (state, WRITTEN)


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
    await live(tmp_path / "j", WRITTEN)
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
    await live(tmp_path / "j", WRITTEN)
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
