"""The journal's main file and WAL are cut or changed at some hundred places each.

The journal then reads all events or a prefix of them, or refuses the file and names the remedy.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_port import JournalError, Pending, Record, Snapshot, Stored
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
