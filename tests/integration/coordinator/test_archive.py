"""Tests the archive in memory and on disk by the same tests, damage of its file, and the SQL
tables that are filled from it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from quorate_coordinator.base.config import ARCHIVE_DAYS
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.status.projection import Projection, runs
from quorate_coordinator.status.rows import run_row
from quorate_coordinator.storage import retention
from quorate_coordinator.storage.archive import BEFORE_ALL_RUNS, FileArchive, readers_of, row_of
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.process.health import Board
from support.markets.archiving_market import ArchivingMarket, archived_runs
from support.markets.scripted_market import Party
from support.memory_archive import MemoryArchive, RunArchive
from support.refusals import refuses
from support.virtual_clock import VirtualClock


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
    first = some[0].run
    assert archive.count() == archive.newest_line(first.client) == 0
    assert archive.run(first.job_id) is None
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


def test_a_file_of_another_program_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    path.write_bytes(b"this is no database" * 500)
    before = path.read_bytes()
    archive = FileArchive(path)
    for _ in range(2):
        with pytest.raises(Unavailable, match="archive.sqlite.*backup"):
            archive.count()
    assert path.read_bytes() == before and "backup" in archive.problem
    archive.close()


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
            found = await connection.execute(select(runs.c.name, runs.c.phase))
            return {str(row.name): str(row.phase) for row in found}

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
    mine = market.clients[0].address.hex()
    before = {row["job_id"]: row for row in await tables.recent(mine)}
    await tables.rebuild(market.core.state, archive)
    assert await shown() == found
    assert {row["job_id"]: row for row in await tables.recent(mine)} == before
    await tables.close()
    again = await Projection.open(tmp_path / "market.sqlite")
    await again.refresh(market.core.state, archive)
    assert {row["job_id"]: row for row in await again.recent(mine)} == before
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


COUNT = 6


@pytest.fixture
def archive(make: Callable[[], RunArchive]) -> RunArchive:
    return make()


@pytest.fixture(scope="module")
def old_runs() -> list[ArchivedRun]:
    """Returns runs that ended a day apart, the first at second 0 of day 1."""
    return [
        over_at(run, (number + 1) * DAY_SECONDS) for number, run in enumerate(archived_runs(COUNT))
    ]


def over_at(run: ArchivedRun, second: int) -> ArchivedRun:
    return replace(run, lines=(*run.lines[:-1], replace(run.lines[-1], at=UnixSeconds(second))))


class Bench:
    """A retention with an archive, a clock, and a set that stands for the content store."""

    def __init__(self, archive: RunArchive, keeping: Keeping) -> None:
        self.archive, self.clock, self.board = archive, VirtualClock(0.0), Board()
        market = ArchivingMarket(Party(0))
        self.history, self.outputs = (
            RunReader(market.core.state, archive),
            Outputs(market.core.state, archive),
        )
        self.stored: set[Hash32] = set()
        self.hidden: list[Hash32] = []
        self.retention = Retention(
            self.history, keeping, self.is_stored, self.hide, self.clock, self.board
        )

    async def is_stored(self, digest: Hash32) -> bool:
        return digest in self.stored

    async def hide(self, over: Sequence[ArchivedRun]) -> None:
        self.hidden += [item.run.job_id for item in over]

    async def delete_until(self, second: float) -> None:
        """Sets the clock to `second` and deletes all runs that may be deleted."""
        self.clock.forward(second - self.clock.now())
        for _ in range(100):
            if await self.retention.step():
                return
        raise AssertionError("it does not come to an end")


GENEROUS = Keeping(1 << 40, 30 * DAY_SECONDS, 10 * DAY_SECONDS)


async def test_a_run_is_deleted_at_its_age_and_not_a_second_earlier(
    archive: RunArchive, old_runs: list[ArchivedRun]
) -> None:
    bench = Bench(archive, GENEROUS)
    archive.keep(old_runs)
    await bench.delete_until(31 * DAY_SECONDS)
    assert archive.count() == COUNT and not bench.hidden, "the first is thirty days old and no more"
    await bench.delete_until(31 * DAY_SECONDS + 1)
    assert bench.hidden == [old_runs[0].run.job_id]
    assert archive.run(old_runs[0].run.job_id) is None
    assert archive.run(old_runs[1].run.job_id) == old_runs[1]
    with refuses(Code.UNKNOWN):
        bench.history.view(old_runs[0].run.job_id, old_runs[0].run.client)
    await bench.delete_until(34 * DAY_SECONDS + 1)
    assert bench.hidden == [run.run.job_id for run in old_runs[:4]]
    assert archive.count() == COUNT, (
        "the count includes deleted runs, so that an old backup differs from a pruned file"
    )
    assert {row["job_id"] for _, row in archive.since(0, 100)} == {
        run.run.job_id.hex() for run in old_runs[4:]
    }


async def test_a_full_archive_deletes_its_oldest_runs_and_none_that_may_be_demanded(
    archive: RunArchive, old_runs: list[ArchivedRun]
) -> None:
    bench = Bench(archive, replace(GENEROUS, bytes_max=1))
    archive.keep(old_runs)
    await bench.delete_until(11 * DAY_SECONDS)
    assert not bench.hidden and [problem.name for problem in bench.board.problems()] == [
        "archive"
    ], "it reports that it grows further"
    await bench.delete_until(13 * DAY_SECONDS + 1)
    assert bench.hidden == [run.run.job_id for run in old_runs[:3]], "runs of ten days and more"
    assert all(archive.run(run.run.job_id) == run for run in old_runs[3:])


async def test_a_run_is_kept_while_it_may_be_demanded_even_if_the_setting_is_shorter(
    archive: RunArchive, old_runs: list[ArchivedRun]
) -> None:
    bench = Bench(archive, Keeping(1 << 40, 60, 10 * DAY_SECONDS))
    archive.keep(old_runs)
    await bench.delete_until(11 * DAY_SECONDS)
    assert not bench.hidden
    await bench.delete_until(11 * DAY_SECONDS + 1)
    assert bench.hidden == [old_runs[0].run.job_id]


async def test_runs_are_deleted_in_small_steps(
    archive: RunArchive, old_runs: list[ArchivedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEP", 2)
    bench = Bench(archive, GENEROUS)
    archive.keep(old_runs)
    bench.clock.forward(100.0 * DAY_SECONDS)
    sizes = []
    while not await bench.retention.step():
        sizes.append(len(bench.hidden))
    assert sizes == [2, 4, 6] and archive.run(old_runs[-1].run.job_id) is None


async def test_the_readers_of_a_stored_ciphertext_stay_known_after_its_run_is_deleted(
    archive: RunArchive, old_runs: list[ArchivedRun]
) -> None:
    """A receipt opens the ciphertext. If its readers were forgotten with the run, a stranger
    could read it.
    """
    bench = Bench(archive, GENEROUS)
    archive.keep(old_runs)
    pairs = list(readers_of(old_runs[0]))
    bench.stored = {digest for digest, _ in pairs[:1]}
    await bench.delete_until(100 * DAY_SECONDS)
    (kept, readers), gone = pairs[0], pairs[1:]
    assert len(bench.hidden) == COUNT and gone
    assert bench.outputs.may_read(kept, readers.client) and not bench.outputs.may_read(kept, None)
    assert all(archive.readers(digest) is None for digest, _ in gone)
    bench.stored.clear()
    await bench.delete_until(101 * DAY_SECONDS)
    assert archive.readers(kept) is None and archive.forgotten_outputs(ZERO_HASH, 10) == []


def test_a_run_is_kept_while_a_session_a_bond_or_a_case_may_need_it() -> None:
    for limits in (MAINNET, DEVNET):
        kept = demanded_seconds(limits)
        assert kept >= limits.session_max + limits.client_close
        assert kept >= limits.escrow_evidence_age + limits.evidence_window
        assert kept >= max(limits.unbond_after, limits.case_evidence_age + limits.jury_window)
    assert demanded_seconds(MAINNET) < ARCHIVE_DAYS * DAY_SECONDS, "less than the default"


def test_pages_of_deleted_runs_are_reused(tmp_path: Path, old_runs: list[ArchivedRun]) -> None:
    made = FileArchive(tmp_path / "archive.sqlite")
    sizes = []
    for wave in range(12):
        wide = [rename(run, wave, number) for run in old_runs for number in range(40)]
        made.keep(wide)
        sizes.append(made.used_bytes())
        made.forget(wide, frozenset())
    assert made.used_bytes() < sizes[0] / 3 and max(sizes) < 1.2 * min(sizes), sizes
    assert (
        made.count() == 12 * len(old_runs) * 40
        and made.ended_before(1 << 40, BEFORE_ALL_RUNS, 10) == []
    )
    made.close()


def rename(run: ArchivedRun, wave: int, number: int) -> ArchivedRun:
    """Returns the same run with another id."""
    job_id = Hash32((wave * 1_000 + number).to_bytes(16, "big") + run.run.job_id[:16])
    return replace(run, run=replace(run.run, job_id=job_id))


def test_an_unreadable_archive_makes_effects_wait(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "archive.sqlite")
    asks: list[Callable[[], object]] = [
        lambda: archive.run(ZERO_HASH),
        lambda: archive.runs_of(ZERO_ADDRESS, 1),
        lambda: archive.runs_after(ZERO_ADDRESS, 0),
        lambda: archive.newest_line(ZERO_ADDRESS),
        lambda: archive.since(0, 1),
        lambda: archive.readers(ZERO_HASH),
        archive.count,
        lambda: archive.ended_before(1, BEFORE_ALL_RUNS, 1),
        lambda: archive.forgotten_outputs(ZERO_HASH, 1),
    ]
    for connection in archive.file._connections():
        connection.set_progress_handler(
            lambda: 1, 1
        )  # SQLite aborts every statement, as after a failed read
    for ask in asks:
        with pytest.raises(Unavailable, match="archive.sqlite cannot be read"):
            ask()
    for connection in archive.file._connections():
        connection.set_progress_handler(None, 1)
    assert [ask() for ask in asks] == [None, [], [], 0, [], None, 0, [], []]
    archive.close()


async def test_an_unreadable_document_file_makes_effects_wait(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", Keeping(1 << 30, 1))
    file.file._connections()[1].set_progress_handler(lambda: 1, 1)
    with pytest.raises(Unavailable, match="documents.sqlite cannot be read"):
        await file.put(b"a receipt")
    file.file._connections()[1].set_progress_handler(None, 1)
    await file.put(b"a receipt")
    file.close()
