"""Tests which runs the archive deletes: old runs, and the oldest if it is full.

It keeps every run that somebody may still demand. Sealed outputs stay sealed.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from quorate_coordinator.base.config import ARCHIVE_DAYS
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.status.projection import Projection, runs
from quorate_coordinator.storage import retention
from quorate_coordinator.storage.archive import (
    BEFORE_ALL_RUNS,
    MemoryArchive,
    RunArchive,
    readers_of,
)
from quorate_coordinator.storage.archive_file import FileArchive
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import VirtualClock
from quorate_runtime.durable import OtherVersion
from quorate_runtime.process.health import Board
from support.markets.archiving_market import ArchivingMarket, archived_runs
from support.markets.scripted_market import Party

COUNT = 6


@pytest.fixture(params=["memory", "file"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunArchive]:
    made: RunArchive = (
        MemoryArchive() if request.param == "memory" else FileArchive(tmp_path / "archive.sqlite")
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def some() -> list[ArchivedRun]:
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
    archive: RunArchive, some: list[ArchivedRun]
) -> None:
    bench = Bench(archive, GENEROUS)
    archive.keep(some)
    await bench.delete_until(31 * DAY_SECONDS)
    assert archive.count() == COUNT and not bench.hidden, "the first is thirty days old and no more"
    await bench.delete_until(31 * DAY_SECONDS + 1)
    assert bench.hidden == [some[0].run.job_id]
    assert archive.run(some[0].run.job_id) is None and archive.run(some[1].run.job_id) == some[1]
    with pytest.raises(Refused) as refused:
        bench.history.view(some[0].run.job_id, some[0].run.client)
    assert refused.value.code is Code.UNKNOWN
    await bench.delete_until(34 * DAY_SECONDS + 1)
    assert bench.hidden == [run.run.job_id for run in some[:4]]
    assert archive.count() == COUNT, (
        "the count includes deleted runs, so that an old backup differs from a pruned file"
    )
    assert {row["job_id"] for _, row in archive.since(0, 100)} == {
        run.run.job_id.hex() for run in some[4:]
    }


async def test_a_full_archive_deletes_its_oldest_runs_and_none_that_may_be_demanded(
    archive: RunArchive, some: list[ArchivedRun]
) -> None:
    bench = Bench(archive, replace(GENEROUS, bytes_max=1))
    archive.keep(some)
    await bench.delete_until(11 * DAY_SECONDS)
    assert not bench.hidden and [problem.name for problem in bench.board.problems()] == [
        "archive"
    ], "it reports that it grows further"
    await bench.delete_until(13 * DAY_SECONDS + 1)
    assert bench.hidden == [run.run.job_id for run in some[:3]], "runs of ten days and more"
    assert all(archive.run(run.run.job_id) == run for run in some[3:])


async def test_a_run_is_kept_while_it_may_be_demanded_even_if_the_setting_is_shorter(
    archive: RunArchive, some: list[ArchivedRun]
) -> None:
    bench = Bench(archive, Keeping(1 << 40, 60, 10 * DAY_SECONDS))
    archive.keep(some)
    await bench.delete_until(11 * DAY_SECONDS)
    assert not bench.hidden
    await bench.delete_until(11 * DAY_SECONDS + 1)
    assert bench.hidden == [some[0].run.job_id]


async def test_runs_are_deleted_in_small_steps(
    archive: RunArchive, some: list[ArchivedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEP", 2)
    bench = Bench(archive, GENEROUS)
    archive.keep(some)
    bench.clock.forward(100.0 * DAY_SECONDS)
    sizes = []
    while not await bench.retention.step():
        sizes.append(len(bench.hidden))
    assert sizes == [2, 4, 6] and archive.run(some[-1].run.job_id) is None


async def test_the_readers_of_a_stored_ciphertext_stay_known_after_its_run_is_deleted(
    archive: RunArchive, some: list[ArchivedRun]
) -> None:
    """A receipt opens the ciphertext. If its readers were forgotten with the run, a stranger
    could read it.
    """
    bench = Bench(archive, GENEROUS)
    archive.keep(some)
    pairs = list(readers_of(some[0]))
    bench.stored = {digest for digest, _ in pairs[:1]}
    await bench.delete_until(100 * DAY_SECONDS)
    (kept, readers), gone = pairs[0], pairs[1:]
    assert len(bench.hidden) == COUNT and gone
    assert bench.outputs.may_read(kept, readers.client) and not bench.outputs.may_read(kept, None)
    assert all(archive.readers(digest) is None for digest, _ in gone)
    bench.stored.clear()
    await bench.delete_until(101 * DAY_SECONDS)
    assert archive.readers(kept) is None and archive.forgotten_outputs(ZERO_HASH, 10) == []


async def test_the_tables_forget_the_runs_that_the_archive_deletes(tmp_path: Path) -> None:
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    jobs = [market.order(number % 2, number + 1) for number in range(3)]
    market.until_archived(*jobs)
    tables = await Projection.open(tmp_path / "market.sqlite")
    await tables.refresh(market.core.state, market.archive)
    await tables.forget(jobs[:2])
    async with tables.engine.connect() as connection:
        found = [row.job_id for row in await connection.execute(select(runs.c.job_id))]
    assert found == [jobs[2].hex()]
    await tables.close()


def test_a_run_is_kept_while_a_session_a_bond_or_a_case_may_need_it() -> None:
    for limits in (MAINNET, DEVNET):
        kept = demanded_seconds(limits)
        assert kept >= limits.session_max + limits.client_close
        assert kept >= limits.escrow_evidence_age + limits.evidence_window
        assert kept >= max(limits.unbond_after, limits.case_evidence_age + limits.jury_window)
    assert demanded_seconds(MAINNET) < ARCHIVE_DAYS * DAY_SECONDS, "less than the default"


def test_pages_of_deleted_runs_are_reused(tmp_path: Path, some: list[ArchivedRun]) -> None:
    made = FileArchive(tmp_path / "archive.sqlite")
    sizes = []
    for wave in range(12):
        wide = [rename(run, wave, number) for run in some for number in range(40)]
        made.keep(wide)
        sizes.append(made.used_bytes())
        made.forget(wide, frozenset())
    assert made.used_bytes() < sizes[0] / 3 and max(sizes) < 1.2 * min(sizes), sizes
    assert (
        made.count() == 12 * len(some) * 40
        and made.ended_before(1 << 40, BEFORE_ALL_RUNS, 10) == []
    )
    made.close()


def rename(run: ArchivedRun, wave: int, number: int) -> ArchivedRun:
    """Returns the same run with another id."""
    job_id = Hash32((wave * 1_000 + number).to_bytes(16, "big") + run.run.job_id[:16])
    return replace(run, run=replace(run.run, job_id=job_id))


def test_a_file_of_an_older_quorate_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    base = sqlite3.connect(path)
    base.executescript("CREATE TABLE runs (job_id BLOB PRIMARY KEY); PRAGMA user_version = 2;")
    base.close()
    before = path.read_bytes()
    with pytest.raises(OtherVersion, match="was written by an older Quorate.*`init` again"):
        FileArchive(path)
    assert path.read_bytes() == before
