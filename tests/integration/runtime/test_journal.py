"""A journal never loses what it acknowledged, whatever happens to its process or its disk.

The tests run on the journal with a real file. Those of `JournalPort` also run on the one in memory.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.journal_port import (
    JournalBusy,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalPort,
    Record,
    Snapshot,
)
from quorate_runtime.journal import journal_files
from quorate_runtime.journal.journal import Journal
from support.journal.memory_journal import MemoryDisk, MemoryJournal

WRITER = Path(__file__).parents[2] / "support" / "journal" / "journal_writer.py"


def record(number: int, size: int = 20) -> Record:
    return Record(
        1, UnixSeconds(1000 + number), Hash32(number.to_bytes(32, "big")), b"%d " % number * size
    )


class FileStore:
    """Opens journals over one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, is_small: bool = False) -> JournalPort:
        return Journal.open(self.folder, pages_max=20 if is_small else None)


class MemoryStore:
    """Opens journals over one disk in memory."""

    def __init__(self, _: Path) -> None:
        self.disk = MemoryDisk()

    def open(self, is_small: bool = False) -> JournalPort:
        self.disk.events_max = 30 if is_small else None
        return MemoryJournal(self.disk)


Store = FileStore | MemoryStore


@pytest.fixture(params=[FileStore, MemoryStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    make: Callable[[Path], Store] = request.param
    return make(tmp_path / "coordinator")


async def test_appends_come_back_in_order(store: Store) -> None:
    journal = store.open()
    results = await asyncio.gather(
        *(journal.append(record(n), [(f"k{n}", b"x%d" % n)]) for n in range(1, 101))
    )
    assert [r.offset for r in results] == list(range(1, 101)) and journal.last_offset == 100
    assert all(r.fresh == {f"k{r.offset}"} for r in results)
    await journal.close()
    again = store.open()
    assert again.last_offset == 100
    assert [(s.offset, s.record) for s in again.replay(40)] == [
        (n, record(n)) for n in range(41, 101)
    ]
    assert [(p.key, p.offset, p.payload) for p in again.pending_effects()] == [
        (f"k{n}", n, b"x%d" % n) for n in range(1, 101)
    ]
    await again.close()


async def test_effects_are_pending_until_marked_done_and_keys_are_never_fresh_again(
    store: Store,
) -> None:
    journal = store.open()
    await journal.append(record(1), [("b", b"1"), ("a", b"2"), ("c", b"3")])
    await journal.mark_done(["a"])
    assert [p.key for p in journal.pending_effects()] == ["b", "c"]
    assert (await journal.append(record(2), [("a", b"!"), ("b", b"!"), ("d", b"4")])).fresh == {"d"}
    await journal.mark_done(["b", "c", "no such key"])
    await journal.close()
    again = store.open()
    assert [(p.key, p.payload) for p in again.pending_effects()] == [("d", b"4")]
    assert (await again.append(record(3), [("b", b"!")])).fresh == frozenset()
    await again.close()


async def test_the_newest_snapshot_is_loaded(store: Store) -> None:
    journal = store.open()
    assert journal.load_snapshot() is None
    for n in range(1, 6):
        await journal.append(record(n), [])
        await journal.save_snapshot(Snapshot(n, 7, b"state %d" % n))
    assert journal.load_snapshot() == Snapshot(5, 7, b"state 5")
    await journal.close()


async def test_a_second_journal_on_the_same_place_is_refused(store: Store) -> None:
    journal = store.open()
    with pytest.raises(JournalBusy, match="in use"):
        store.open()
    await journal.append(record(1), [])
    await journal.close()
    await store.open().close()


async def test_a_full_disk_fails_every_append_from_there_on_and_acknowledges_none(
    store: Store,
) -> None:
    journal = store.open(is_small=True)
    results = await asyncio.gather(
        *(journal.append(record(n, 1000), []) for n in range(1, 61)), return_exceptions=True
    )
    kept = [r for r in results if not isinstance(r, BaseException)]
    assert len(kept) < 60 and all(isinstance(r, JournalFailed) for r in results[len(kept) :])
    with pytest.raises(JournalFailed, match="Free space"):
        await journal.append(record(99), [])
    with pytest.raises(JournalFailed):
        await journal.mark_done(["k"])
    await journal.close()
    again = store.open()
    assert len(list(again.replay(0))) == again.last_offset >= len(kept)
    assert (
        await again.append(record(again.last_offset + 1), [])
    ).offset == again.last_offset  # with room again
    await again.close()


async def test_an_append_whose_caller_gave_up_is_written(store: Store) -> None:
    journal = store.open()
    journal.append(record(1), []).cancel()
    await journal.append(record(2), [])
    assert [s.offset for s in journal.replay(0)] == [1, 2]
    await journal.close()


# ------------------------------------------------------------------------------ the real file alone


async def test_waiting_callers_share_one_commit(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    before = journal.commits
    await asyncio.gather(*(journal.append(record(n)) for n in range(1, 501)))
    assert journal.commits - before <= 50
    await journal.close()


async def test_appends_of_one_turn_of_the_loop_are_one_transaction(tmp_path: Path) -> None:
    """The writer wakes once for all events of a turn. A single event does not wait for others."""
    journal = Journal.open(tmp_path)
    for number in range(5):
        before = journal.commits
        appends = [
            journal.append(record(10 * number + item)) for item in range(10 if number else 1)
        ]
        await asyncio.gather(*appends)
        assert journal.commits - before == 1
    await journal.close()


async def test_closing_writes_what_the_turn_has_gathered(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    append = journal.append(record(1))
    await journal.close()
    assert (await append).offset == 1
    again = Journal.open(tmp_path)
    assert [stored.offset for stored in again.replay()] == [1]
    await again.close()


async def test_a_failed_disk_in_the_middle_of_a_file_acknowledges_nothing(tmp_path: Path) -> None:
    """The kernel does not let the file grow (EFBIG), as with a full disk or a dead one.

    SQLite's own limit has no part in this.
    """
    output = await asyncio.to_thread(run_writer, tmp_path / "j", "--file-bytes-max", "400000")
    acknowledged = [
        int(line.split()[1]) for line in output.stdout.splitlines() if line.startswith("ok")
    ]
    assert output.returncode == 3 and "could not be made durable" in output.stderr
    journal = Journal.open(tmp_path / "j")
    stored = [s.offset for s in journal.replay(0)]
    assert (
        acknowledged
        and set(acknowledged) <= set(stored)
        and stored == list(range(1, len(stored) + 1))
    )
    await journal.close()


def run_writer(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Runs the appenders to their end."""
    return subprocess.run(
        [sys.executable, WRITER, folder, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def kill_writer(folder: Path, after_lines: int, crash_at: str = "", *options: str) -> set[int]:
    """Runs concurrent appenders in a process and kills it with SIGKILL.

    Returns what the process had acknowledged.
    """
    acknowledged = set()
    words = [sys.executable, WRITER, folder, "--crash-at", crash_at, *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged.add(int(line.split()[1]))
            if not crash_at and len(acknowledged) == after_lines:
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return acknowledged


KILLS = [
    (1, ""),
    (300, ""),
    (2500, ""),
    (0, "journal.before-commit:9"),
    (0, "journal.after-commit:9"),
]


@pytest.mark.rule("I6")
@pytest.mark.parametrize(("after_lines", "crash_at"), KILLS)
async def test_kill_9_during_concurrent_appends_loses_nothing_acknowledged(
    tmp_path: Path, after_lines: int, crash_at: str
) -> None:
    acknowledged = kill_writer(tmp_path / "j", after_lines, crash_at)
    journal = Journal.open(tmp_path / "j")  # the lock died with its holder
    stored = list(journal.replay(0))
    assert [s.offset for s in stored] == list(range(1, len(stored) + 1))
    assert acknowledged and acknowledged <= {s.offset for s in stored}
    assert {p.offset for p in journal.pending_effects()} == {
        s.offset for s in stored
    }  # event and effect: both or neither
    if crash_at == "journal.after-commit:9":
        assert len(stored) > len(acknowledged)  # durable, but not acknowledged
    await journal.append(record(len(stored) + 1))
    await journal.close()


async def test_a_wal_cut_anywhere_leaves_a_prefix(tmp_path: Path) -> None:
    # No more, because SQLite copies a WAL of 4 MB into the main file.
    kill_writer(tmp_path / "j", 200, "", "--appends", "240")
    wal = (tmp_path / "j" / "journal.db-wal").read_bytes()
    assert len(wal) > 20_000
    page = 4096 + 24
    cuts = [
        0,
        1,
        31,
        32,
        33,
        32 + page - 1,
        32 + page,
        32 + 7 * page + 100,
        len(wal) // 2,
        len(wal) - page,
        len(wal) - 1,
        len(wal),
    ]
    counts = []
    for number, cut in enumerate(cuts):
        folder = tmp_path / f"cut {number}"
        shutil.copytree(tmp_path / "j", folder)
        (folder / "journal.db-shm").unlink()
        (folder / "journal.db-wal").write_bytes(wal[:cut])
        journal = Journal.open(folder)
        stored = [s.offset for s in journal.replay(0)]
        assert stored == list(range(1, len(stored) + 1))
        assert {p.offset for p in journal.pending_effects()} == set(stored)
        assert (await journal.append(record(len(stored) + 1))).offset == len(stored) + 1
        await journal.close()
        counts.append(len(stored))
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] >= 200


async def test_flipped_wal_bytes_end_the_prefix_and_are_never_read_as_events(
    tmp_path: Path,
) -> None:
    kill_writer(tmp_path / "j", 200)
    path = tmp_path / "j" / "journal.db-wal"
    wal = bytearray(path.read_bytes())
    wal[len(wal) // 2] ^= 0xFF
    path.write_bytes(wal)
    (tmp_path / "j" / "journal.db-shm").unlink()
    journal = Journal.open(tmp_path / "j")
    assert all(s.record.payload.startswith(b"event %d" % s.offset) for s in journal.replay(0))
    await journal.close()


async def filled(folder: Path) -> Path:
    """Writes a journal of 200 events in at least ten batches."""
    journal = Journal.open(folder)
    for start in range(1, 201, 20):
        await asyncio.gather(*(journal.append(record(n, 200)) for n in range(start, start + 20)))
    await journal.save_snapshot(Snapshot(200, 1, b"state"))
    await journal.close()
    return folder / "journal.db"


def read_all(folder: Path) -> int:
    """Counts the events over a connection of its own."""
    return len(list(journal_files.read_events(folder, 0)))


@pytest.mark.parametrize("bytes_kept", [0, 1, 50, 5000, 70_001])
async def test_truncated_main_file_is_reported_with_its_remedy(
    tmp_path: Path, bytes_kept: int
) -> None:
    path = await filled(tmp_path / "j")
    with path.open("r+b") as file:
        file.truncate(bytes_kept)
    with pytest.raises(JournalDamaged, match="backup"):
        journal = Journal.open(tmp_path / "j")
        await journal.close()  # the cut may lie in pages that opening does not read
        read_all(tmp_path / "j")


async def test_missing_main_file_beside_its_wal_is_reported(tmp_path: Path) -> None:
    kill_writer(tmp_path / "j", 50)
    (tmp_path / "j" / "journal.db").unlink()
    with pytest.raises(JournalDamaged, match="WAL is there"):
        Journal.open(tmp_path / "j")


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            "UPDATE batches SET payload = x'00' WHERE first <= 77 AND last >= 77",
            "does not have its checksum",
        ),
        (
            "UPDATE batches SET last = last + 1 WHERE first <= 78 AND last >= 78",
            "does not have its checksum",
        ),
        ("DELETE FROM batches WHERE first <= 79 AND last >= 79", "event [0-9]+ is missing"),
        ("UPDATE snapshots SET payload = x'00'", "snapshot at event 200"),
    ],
)
async def test_changed_rows_are_reported(tmp_path: Path, statement: str, what: str) -> None:
    path = await filled(tmp_path / "j")
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(JournalDamaged, match=what):
        journal = Journal.open(tmp_path / "j")
        try:
            journal.load_snapshot()
        finally:
            await journal.close()


async def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = await filled(tmp_path / "j")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(JournalError, match=r"journal\.db was written by a newer Quorate"):
        Journal.open(tmp_path / "j")
    await asyncio.sleep(0)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {journal_files.SCHEMA_VERSION}")
    connection.close()
    await Journal.open(tmp_path / "j").close()  # the lock was released


async def test_a_journal_of_an_older_quorate_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = await filled(tmp_path / "j")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(JournalError) as refused:
        Journal.open(tmp_path / "j")
    assert str(refused.value) == (
        f"{path} was written by an older Quorate (format 3; this version reads 7). Finish "
        f"with that version, or move {tmp_path} away and run `init` again."
    )


async def test_snapshots_bound_the_file_the_keys_and_the_replay(tmp_path: Path) -> None:
    """Takes 40 snapshots of 100 events each, with 99 of 100 effects performed."""
    journal = Journal.open(tmp_path / "j")
    sizes, pages = [], []
    for start in range(1, 4001, 100):
        await asyncio.gather(
            *(journal.append(record(n), [(f"k{n}", b"x" * 500)]) for n in range(start, start + 100))
        )
        await journal.mark_done([f"k{n}" for n in range(start + 1, start + 100)])
        await journal.save_snapshot(Snapshot(start + 99, 1, b"state"))
        sizes.append(journal._outbox.keys)
        connection = sqlite3.connect(tmp_path / "j" / "journal.db")
        pages.append(connection.execute("PRAGMA page_count").fetchone()[0])
        connection.close()
    assert sizes[-1] - sizes[9] == 30, "only keys that are still pending are added"
    assert pages[-1] < 2 * pages[9]
    await journal.close()
    again = Journal.open(tmp_path / "j")
    assert again.last_offset == 4000
    assert [p.key for p in again.pending_effects()] == [f"k{n}" for n in range(1, 4001, 100)]
    assert {len(p.payload) for p in again.pending_effects()} == {500}
    assert [s.offset for s in again.replay(3900)] == list(range(3901, 4001)), (
        "the older snapshot can still be replayed from"
    )
    with pytest.raises(
        JournalDamaged, match="event 1 is missing, as it must be after the snapshot at event 3900"
    ):
        list(again.replay(0))
    assert (await again.append(record(4001), [("k1", b""), ("k3999", b""), ("k2", b"")])).fresh == {
        "k2"
    }
    await again.mark_done(["k1", "k2"])
    await again.close()
    final = Journal.open(tmp_path / "j")
    assert [p.key for p in final.pending_effects()] == [f"k{n}" for n in range(101, 4001, 100)]
    await final.close()


async def test_a_second_process_on_one_folder_is_refused_with_the_holder(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    output = await asyncio.to_thread(run_writer, tmp_path / "j")
    assert (
        output.returncode == 4 and f"in use by another process (pid {os.getpid()})" in output.stderr
    )
    await journal.close()


async def test_files_are_private(tmp_path: Path) -> None:
    path = await filled(tmp_path / "role" / "j")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["FULL", "IOERR", "CANTOPEN", "READONLY", "BUSY"])
def test_obstacle_to_reading_is_not_called_damage(tmp_path: Path, name: str) -> None:
    """With a full disk, no inodes or no descriptors the file may be whole. An operator who restored
    a backup then would lose what is in the file.
    """
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{name}")
    path = tmp_path / "journal.db"
    with (
        pytest.raises(JournalError, match=r"journal\.db.*may be whole.*start again") as told,
        journal_files._reading(path),
    ):
        raise error
    assert not isinstance(told.value, JournalDamaged)
    damage = sqlite3.DatabaseError("malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with pytest.raises(JournalDamaged, match="backup"), journal_files._reading(path):
        raise damage


async def test_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("somebody's")
    with pytest.raises(JournalError, match="j: .*start again"):
        Journal.open(tmp_path / "j")
