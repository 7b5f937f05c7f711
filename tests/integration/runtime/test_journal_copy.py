"""The copy of a journal in a second folder, while a process writes the journal and is killed."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.journal_port import JournalDamaged, Record, Snapshot
from quorate_runtime.journal import journal_files as files
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_copy import JournalCut, check_copy

COPIER = """
import sys
from pathlib import Path
from quorate_runtime.journal.journal_copy import JournalCut
source, target = map(Path, sys.argv[1:])
target.mkdir(exist_ok=True)
with JournalCut(source) as cut:
    (target / "begun").touch()
    cut.write(target)
"""
WRITER = Path(__file__).parents[2] / "support" / "journal" / "journal_writer.py"


def record(number: int) -> Record:
    return Record(1, UnixSeconds(number), Hash32(bytes(32)), b"event %d" % number)


async def append(journal: Journal, count: int) -> None:
    for _ in range(count):
        number = journal.last_offset + 1
        await journal.append(record(number), [(f"k{number}", b"effect")])


def copied(source: Path, target: Path) -> int:
    with JournalCut(source) as cut:
        return cut.write(target)


async def content(folder: Path) -> tuple[object, ...]:
    """All that a start reads of a journal."""
    journal = Journal.open(folder)
    try:
        snapshot = journal.load_snapshot()
        events = list(journal.replay(snapshot.offset if snapshot else 0))
        return journal.last_offset, snapshot, events, list(journal.pending_effects())
    finally:
        await journal.close()


async def test_a_copy_goes_on_where_it_ended_and_keeps_no_more_than_the_journal(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "journal", tmp_path / "copy"
    journal = Journal.open(source)
    for round_number in range(1, 6):
        await append(journal, 7)
        await journal.mark_done([f"k{number}" for number in range(1, 5 * round_number)])
        if round_number in (2, 4, 5):
            await journal.save_snapshot(Snapshot(journal.last_offset, 1, b"state" * 50_000))
        assert copied(source, target) > 0 and copied(source, target) == 0
        assert check_copy(target)[0] == journal.last_offset
    await journal.close()
    with closing(files.connect(files.database(target))) as copy:
        batches = copy.execute("SELECT count(*) FROM batches").fetchone()[0]
    assert batches < 35, "batches that no start needs are deleted from the copy too"
    assert await content(target) == await content(source)


async def test_a_copy_that_missed_deleted_batches_is_made_again(tmp_path: Path) -> None:
    source, target = tmp_path / "journal", tmp_path / "copy"
    journal = Journal.open(source)
    await append(journal, 3)
    copied(source, target)
    for _ in range(3):
        await append(journal, 3)
        await journal.save_snapshot(Snapshot(journal.last_offset, 1, b"state"))
    copied(source, target)
    await journal.close()
    assert await content(target) == await content(source)


async def test_a_copy_of_a_journal_that_went_on_differently_is_made_again(tmp_path: Path) -> None:
    one, two, target = tmp_path / "one", tmp_path / "two", tmp_path / "copy"
    for folder, count in ((one, 4), (two, 6)):
        journal = Journal.open(folder)
        for number in range(count):
            await journal.append(record(100 * count + number))
        await journal.close()
        copied(folder, target)
    assert await content(target) == await content(two)


async def test_a_copy_with_a_changed_byte_is_found(tmp_path: Path) -> None:
    source, target = tmp_path / "journal", tmp_path / "copy"
    journal = Journal.open(source)
    await append(journal, 5)
    copied(source, target)
    await journal.close()
    with closing(sqlite3.connect(files.database(target))) as copy, copy:
        copy.execute("UPDATE batches SET payload = zeroblob(length(payload)) WHERE id = 3")
    with pytest.raises(JournalDamaged, match="does not have its checksum"):
        check_copy(target)


async def test_a_copier_killed_in_the_middle_leaves_a_whole_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "journal", tmp_path / "copy"
    journal = Journal.open(source)
    await append(journal, 300)
    await journal.save_snapshot(Snapshot(journal.last_offset, 1, b"state" * 2_000_000))
    before = 0
    for delay in (0.0, 0.001, 0.005, 0.02):
        with subprocess.Popen([sys.executable, "-c", COPIER, str(source), str(target)]) as copier:
            while not (target / "begun").exists():
                await asyncio.sleep(0.005)
            await asyncio.sleep(delay)
            os.kill(copier.pid, signal.SIGKILL)
        (target / "begun").unlink()
        if files.database(target).exists():
            offset, _ = check_copy(target)
            assert offset >= before
            before = offset
        await append(journal, 10)
        await journal.save_snapshot(Snapshot(journal.last_offset, 1, b"other" * 2_000_000))
    copied(source, target)
    await journal.close()
    assert await content(target) == await content(source)


@pytest.mark.rule("I6")
async def test_nothing_acknowledged_before_a_copy_began_is_lost_by_kill_9(tmp_path: Path) -> None:
    source, target = tmp_path / "journal", tmp_path / "copy"
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(source)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acknowledged = before = 0
        for _ in range(20):
            for _ in range(50):
                acknowledged = max(acknowledged, int(writer.stdout.readline().split()[1]))
            before = acknowledged
            await asyncio.to_thread(copied, source, target)
        os.kill(writer.pid, signal.SIGKILL)
    offset, _ = check_copy(target)
    assert offset >= before >= 1000
    assert (await content(target))[0] == offset
