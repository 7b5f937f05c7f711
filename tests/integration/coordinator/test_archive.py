"""Tests the archive in memory and on disk by the same tests, damage of its file, and the SQL
tables that are filled from it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.status.projection import Projection, runs
from quorate_coordinator.status.rows import run_row
from quorate_coordinator.storage.archive import MemoryArchive, RunArchive, readers_of, row_of
from quorate_coordinator.storage.archive_file import FileArchive
from quorate_coordinator.storage.output_access import Outputs
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace
from quorate_runtime.durable import OtherVersion
from support.markets.archiving_market import ArchivingMarket, archived_runs
from support.markets.scripted_market import Party


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], RunArchive]]:
    """Returns a function that opens the same archive once more at each call."""
    memory, opened = MemoryArchive(), []

    def open_again() -> RunArchive:
        if request.param == "memory":
            return memory
        opened.append(FileArchive(tmp_path / "archive.sqlite"))
        return opened[-1]

    yield open_again
    for archive in opened:
        archive.close()


@pytest.fixture(scope="module")
def some() -> list[ArchivedRun]:
    return archived_runs(6)


def test_a_kept_run_is_found(make: Callable[[], RunArchive], some: list[ArchivedRun]) -> None:
    archive = make()
    assert (
        archive.count() == 0
        and archive.run(some[0].run.job_id) is None
        and archive.newest_line(some[0].run.client) == 0
    )
    archive.keep(some[:4])
    archive.keep(some[2:])
    archive.keep([])
    for again in (archive, make()):
        assert again.count() == len(some) == 6
        assert [again.run(run.run.job_id) for run in some] == some
        for client in {run.run.client for run in some}:
            mine = [run for run in some if run.run.client == client]
            by_age = sorted(mine, key=lambda run: (run.run.created_at, run.last_line), reverse=True)
            assert again.runs_of(client, 2) == by_age[:2]
            by_line = sorted(mine, key=lambda run: run.last_line, reverse=True)
            assert (
                again.runs_after(client, by_line[1].last_line) == by_line[:1]
                and again.runs_after(client, 0) == by_line
            )
            assert again.newest_line(client) == by_line[0].last_line
        oldest = sorted(some, key=lambda run: run.last_line)
        assert again.since(oldest[0].last_line, 3) == [
            (run.last_line, row_of(run)) for run in oldest[1:4]
        ]
        for run in some:
            pairs = list(readers_of(run))
            assert len(pairs) >= 2
            for digest, readers in pairs:
                assert again.readers(digest) == readers and readers.client == run.run.client
        assert again.readers(hash_tuple("nobody's")) is None


def test_a_run_that_is_kept_again_is_replaced(
    make: Callable[[], RunArchive], some: list[ArchivedRun]
) -> None:
    archive = make()
    archive.keep(some[:1])
    changed = replace(some[0], run=replace(some[0].run, name="renamed"))
    archive.keep([changed])
    assert archive.count() == 1 and archive.run(changed.run.job_id) == changed


def test_lines_of_the_log_are_kept_once_and_in_order(make: Callable[[], RunArchive]) -> None:
    archive = make()
    archive.append([(1, b"one"), (0, b"zero")])
    archive.append([(1, b"one"), (2, b"two")])
    assert archive.line_count() == 3
    again = make()
    assert again.lines_after(-1, 2) == [(0, b"zero"), (1, b"one")]
    assert again.lines_after(1, 9) == [(2, b"two")]


def test_an_output_keeps_its_first_client_and_provider(make: Callable[[], RunArchive]) -> None:
    """Nobody can become its reader by committing to it again."""
    archive = make()
    market = ArchivingMarket(*[Party(number) for number in range(5)], archive=archive)
    outputs = Outputs(market.core.state, archive)
    market.is_archive_down = True
    job_id = market.order(0, 1)
    while not market.waiting:
        market.beat()
    outputs.load()
    over_lease = next(iter(market.core.state.leases.values()))
    kept = market.write()
    (run,) = [archive.run(job_id)]
    assert kept and run is not None
    (digest, readers), *_ = readers_of(run)
    market.perform_archive()
    outputs.forget([run])
    assert job_id not in market.core.state.jobs and not outputs.by_digest
    assert outputs.may_read(digest, readers.client) and outputs.may_read(digest, readers.provider)
    assert not outputs.may_read(digest, market.clients[1].address) and not outputs.may_read(
        digest, None
    )
    with pytest.raises(Refused, match="another execution"):
        outputs.claim(digest, Hash32(b"\x01" * 32))
    assert over_lease.job_id == job_id and not outputs.may_read(hash_tuple("nobody's"), None)


def test_a_file_of_another_program_is_not_changed(tmp_path: Path, some: list[ArchivedRun]) -> None:
    path = tmp_path / "archive.sqlite"
    path.write_bytes(b"this is no database" * 500)
    before = path.read_bytes()
    archive = FileArchive(path)
    for _ in range(2):
        with pytest.raises(Unavailable, match="archive.sqlite.*backup"):
            archive.count()
    assert path.read_bytes() == before and "backup" in archive.problem
    archive.close()
    newer = tmp_path / "newer.sqlite"
    made = FileArchive(newer)
    made.keep(some)
    made.close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(OtherVersion, match="newer Quorate"):
        FileArchive(newer)
    with sqlite3.connect(newer) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (6,)
    connection.close()


def test_a_full_disk_delays_runs_and_loses_none(tmp_path: Path, some: list[ArchivedRun]) -> None:
    archive = FileArchive(tmp_path / "archive.sqlite")
    writer, _ = archive.file._connections()
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(Unavailable, match="does not take"):
        archive.keep(some)
    assert archive.count() == 0 and archive.readers(next(readers_of(some[0]))[0]) is None, (
        "all or none"
    )
    writer.execute("PRAGMA max_page_count = 100000")
    archive.keep(some)
    assert archive.count() == 6
    archive.close()


def test_rows_are_whole_while_another_thread_deletes_their_runs(
    tmp_path: Path, some: list[ArchivedRun]
) -> None:
    """The row of an old run once needed a second read, which found no run after a deletion."""
    archive = FileArchive(tmp_path / "archive.sqlite")
    archive.keep(some)
    rows = {run.last_line: row_of(run) for run in some}
    with ThreadPoolExecutor(1) as thread:
        deleting = thread.submit(lambda: [archive.forget([run], frozenset()) for run in some])
        while not deleting.done():
            assert all(rows[line] == row for line, row in archive.since(0, len(some)))
        deleting.result()
    assert archive.since(0, len(some)) == []
    archive.close()


async def test_the_tables_show_runs_from_state_and_archive(
    tmp_path: Path, make: Callable[[], RunArchive]
) -> None:
    """A run that starts and ends between two refreshes appears too. A run that did not change is
    not written again.
    """
    archive = make()
    market = ArchivingMarket(*[Party(number) for number in range(5)], archive=archive)
    tables = await Projection.open(tmp_path / "market.sqlite")

    async def shown() -> dict[str, str]:
        async with tables.engine.connect() as connection:
            return {
                str(row.name): str(row.phase)
                for row in await connection.execute(select(runs.c.name, runs.c.phase))
            }

    first = market.order(0, 1)
    await tables.refresh(market.core.state, archive)
    assert await shown() == {"job-1": "matching"} or await shown() == {"job-1": "running"}
    second = market.order(1, 2)
    market.until_archived(first, second)
    market.order(0, 3)
    offset = await tables.refresh(market.core.state, archive)
    assert offset == market.core.state.event_seq == await tables.offset()
    found = await shown()
    assert (found["job-1"], found["job-2"]) == ("decided", "decided") and "job-3" in found
    followed = tables.followed
    assert followed is not None and not (followed.jobs or followed.providers or followed.cases)
    before = {row["job_id"]: row for row in await tables.recent(market.clients[0].address.hex())}
    await tables.rebuild(market.core.state, archive)
    assert await shown() == found
    assert {
        row["job_id"]: row for row in await tables.recent(market.clients[0].address.hex())
    } == before
    await tables.close()
    again = await Projection.open(tmp_path / "market.sqlite")
    await again.refresh(market.core.state, archive)
    assert {
        row["job_id"]: row for row in await again.recent(market.clients[0].address.hex())
    } == before
    await again.close()


def test_a_run_has_the_same_row_in_state_and_archive() -> None:
    """The row in the tables does not change when the run is archived."""
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    market.is_archive_down = True
    jobs = [market.order(0, number + 1) for number in range(3)]
    while sum(len(effect.jobs) for effect in market.waiting) < len(jobs):
        market.beat()
    market.write()
    for job_id in jobs:
        over = market.archive.run(job_id)
        assert over is not None and row_of(over) == run_row(market.job(job_id))
