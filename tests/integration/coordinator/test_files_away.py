"""Tests a coordinator whose archive or documents are damaged, missing or another program's.

It goes on, reports the problem, and uses the files again when they are back. Work that needs them
waits. Nobody can use the gap to read another's output, and no transaction is sent twice.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from quorate_content.dag.cid import Cid, Codec
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import CombinedStores
from quorate_coordinator.base.config import FILES_KEPT
from quorate_coordinator.base.storage_sizes import Keeping
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.model.lease import Revealed
from quorate_coordinator.core.model.state import State
from quorate_coordinator.status.projection import Projection
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import FileArchive, Readers, readers_of
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.output_access import Outputs
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_protocol.values import replace
from quorate_runtime.durable import FileDamaged
from support.markets.archiving_market import ArchivingMarket, archived_runs
from support.markets.scripted_market import Party
from support.markets.worked_coordinator import WorkedCoordinator, worked_service
from support.memory_archive import MemoryArchive

KEEPING = Keeping(1 << 30, 86_400)
OTHER = Hash32(b"\x01" * 32)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate_runtime.optional.RETRY_SECONDS", 0.0)


@pytest.fixture(scope="module")
def runs() -> list[ArchivedRun]:
    return archived_runs(4)


def spoil(path: Path) -> None:
    """Overwrites every page after the first."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes([0x5A]) * (len(data) - 4096))


# ---- tests of one file


def test_a_damaged_page_is_reported_and_stops_nothing(
    tmp_path: Path, runs: list[ArchivedRun]
) -> None:
    path = tmp_path / "archive.sqlite"
    archive = FileArchive(path)
    archive.keep(runs)
    archive.close()
    spoil(path)
    archive, before = FileArchive(path), path.read_bytes()
    asks = (
        lambda: archive.run(runs[0].run.job_id),
        lambda: archive.keep(runs),
        lambda: archive.readers(ZERO_HASH),
        archive.count,
    )
    for ask in asks:
        with pytest.raises(Unavailable, match=r"archive\.sqlite.*backup.*recover"):
            ask()
    assert "archive.sqlite" in archive.problem
    archive.close()
    assert path.read_bytes() == before


def test_a_run_that_cannot_be_decoded_names_the_file(
    tmp_path: Path, runs: list[ArchivedRun]
) -> None:
    archive = FileArchive(tmp_path / "archive.sqlite")
    archive.keep(runs)
    with archive.file.writing("") as writer:
        writer.execute(
            "UPDATE runs SET body = substr(body, 1, 100) WHERE job_id = ?", (runs[0].run.job_id,)
        )
    with pytest.raises(Unavailable, match=r"archive\.sqlite: a run in it cannot be decoded"):
        archive.run(runs[0].run.job_id)
    assert archive.run(runs[1].run.job_id) == runs[1] and "decoded" in archive.problem
    archive.close()


async def test_a_changed_document_is_not_shown(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING)
    await file.put(b"a receipt")
    with file.file.writing("") as writer:
        writer.execute("UPDATE documents SET body = x'00'")
    with pytest.raises(Unavailable, match=r"documents\.sqlite.*is not what was stored"):
        file.get(sha256(b"a receipt"))
    file.close()


def test_nothing_is_written_to_a_file_that_replaced_an_open_one(
    tmp_path: Path, runs: list[ArchivedRun]
) -> None:
    archive = FileArchive(tmp_path / "archive.sqlite")
    archive.keep(runs[:1])
    (tmp_path / "archive.sqlite").rename(tmp_path / "kept.sqlite")
    with pytest.raises(Unavailable, match="taken away or replaced"):
        archive.keep(runs[1:])
    (tmp_path / "kept.sqlite").rename(tmp_path / "archive.sqlite")
    archive.keep(runs[1:])
    assert archive.count() == len(runs) and not archive.problem
    archive.close()


def test_a_missing_file_is_not_silently_replaced_by_an_empty_one(
    tmp_path: Path, runs: list[ArchivedRun]
) -> None:
    whole = FileArchive(tmp_path / "archive.sqlite")
    whole.keep(runs)
    whole.close()
    backup = (tmp_path / "archive.sqlite").read_bytes()
    (tmp_path / "archive.sqlite").unlink()
    archive = FileArchive(
        tmp_path / "archive.sqlite", startup_checks.missing_file_remedy("archive.sqlite", True, ())
    )
    with pytest.raises(
        Unavailable, match="it is gone.*backup.*quorate coordinator up --begin-anew archive.sqlite"
    ):
        archive.count()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "archive.sqlite").write_bytes(backup)
    assert archive.count() == len(runs) and not archive.problem, "taken up while it runs"
    archive.close()
    assert not startup_checks.missing_file_remedy(
        "archive.sqlite", False, ()
    ) and not startup_checks.missing_file_remedy("archive.sqlite", True, ["archive.sqlite"])


async def test_tables_show_runs_that_changed_while_the_archive_was_away(tmp_path: Path) -> None:
    """A failed refresh once dropped the list of changed runs."""
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    market.is_archive_down = True
    tables = await Projection.open(tmp_path / "market.sqlite")
    await tables.refresh(market.core.state, market.archive)
    job_id = market.order(0, 1)
    away = FileArchive(tmp_path / "archive.sqlite", "Restore it.")
    with pytest.raises(Unavailable):
        await tables.refresh(market.core.state, away)
    await tables.refresh(market.core.state, market.archive)
    client = market.core.state.jobs[job_id].submission.order.message.client
    assert [row["job_id"] for row in await tables.recent(client.hex())] == [job_id.hex()]
    await tables.close()


# ---- who may read an output while the archive is away


class UnavailableArchive(MemoryArchive):
    """An archive that a test can make unavailable."""

    is_away = False

    def readers(self, output: Hash32) -> Readers | None:
        if self.is_away:
            raise Unavailable("archive.sqlite: it is gone", 1.0)
        return super().readers(output)


def test_while_the_archive_is_away_nobody_reads_an_archived_output(runs: list[ArchivedRun]) -> None:
    """Receipts are public and open ciphertexts. While the coordinator cannot look up the owner,
    nobody gets the ciphertext and no claim makes a new owner.
    """
    archive = UnavailableArchive()
    archive.keep(runs)
    market = ArchivingMarket(*[Party(number) for number in range(5)], archive=archive)
    market.is_archive_down = True
    market.order(1, 9)
    for _ in range(20):
        if market.core.state.leases:
            break
        market.beat()
    mine = next(iter(market.core.state.leases.values()))
    outputs, (digest, whose) = Outputs(market.core.state, archive), next(readers_of(runs[0]))
    archive.is_away = True
    with pytest.raises(Unavailable):
        outputs.may_read(digest, mine.provider)
    outputs.claim(sha256(b"of no lease"), ZERO_HASH)
    assert not outputs.unasked, "claims of unknown leases are not kept"
    # accepted, because an honest provider is paid by it
    outputs.claim(digest, mine.assignment_hash)
    with pytest.raises(Unavailable):
        outputs.may_read(digest, mine.provider)
    archive.is_away = False
    assert not outputs.may_read(digest, mine.provider) or mine.provider == whose.provider
    assert outputs.may_read(digest, whose.client) and digest not in outputs.by_digest
    with pytest.raises(Refused, match="another execution"):
        outputs.claim(digest, mine.assignment_hash)


def test_a_claim_made_while_the_archive_was_away_is_checked_after_a_restart(
    runs: list[ArchivedRun],
) -> None:
    """Once such a claim gave the claimer another client's output."""
    archive = UnavailableArchive()
    archive.keep(runs)
    digest, whose = next(readers_of(runs[0]))
    market = ArchivingMarket(*[Party(number) for number in range(5)], archive=archive)
    market.is_archive_down = True
    job_id = market.order(1, 9)
    market.until_decided(job_id)
    state = market.core.state
    mine = next(
        item
        for item in state.leases.values()
        if isinstance(item.phase, Revealed) and item.provider != whose.provider
    )
    assert isinstance(mine.phase, Revealed)
    stolen = replace(
        mine.phase.commit, message=replace(mine.phase.commit.message, encrypted_output=digest)
    )
    with state.transaction():
        state.leases[mine.assignment_hash] = replace(mine, phase=replace(mine.phase, commit=stolen))
    outputs = Outputs(state, archive)
    outputs.load()
    archive.is_away = True
    with pytest.raises(Unavailable):
        outputs.may_read(digest, mine.provider)
    archive.is_away = False
    assert not outputs.may_read(digest, mine.provider) and outputs.may_read(digest, whose.client)
    other = next(iter(outputs.by_digest))
    assert outputs.may_read(other, state.leases[outputs.by_digest[other]].provider), (
        "what is its own it reads"
    )


def test_an_output_belongs_to_the_run_that_had_it_first(
    tmp_path: Path, runs: list[ArchivedRun]
) -> None:
    first = next(run for run in runs if list(readers_of(run)))
    digest, whose = next(readers_of(first))
    thief = next(run for run in runs if run.run.client != first.run.client)
    stolen = replace(thief, leases=first.leases)
    for archive in (MemoryArchive(), FileArchive(tmp_path / "archive.sqlite")):
        archive.keep([first])
        archive.keep([stolen])
        assert archive.readers(digest) == whose
        archive.close()


async def test_content_outside_the_documents_is_found_while_they_are_away(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 1 << 20, spare_bytes=0)
    (tmp_path / "input").write_bytes(b"an input")
    stat = await store.put(tmp_path / "input", "a")

    async def away(_: Cid) -> bytes | None:
        raise Unavailable("documents.sqlite: it is gone", 1.0)

    library = CombinedStores((store,), away)
    assert (await library.find(stat.cid))[0] is store
    with pytest.raises(Unavailable, match=r"documents\.sqlite"):
        await library.find(Cid(1, Codec.RAW, sha256(b"a receipt")))
    await store.close()


# ---- sent transactions


def test_a_missing_record_of_sent_transactions_is_not_silently_replaced(tmp_path: Path) -> None:
    path, state = tmp_path / "transactions.sqlite", State()
    startup_checks.check_sends(path, state, ())
    assert path.exists(), "nothing was sent yet"
    path.unlink()
    with state.transaction():
        state.counters["payroll"] = 3
    with pytest.raises(
        FileDamaged,
        match=r"transactions\.sqlite: it is gone.*payroll 3.*--begin-anew transactions\.sqlite",
    ):
        startup_checks.check_sends(path, state, ())
    assert not path.exists()
    startup_checks.check_sends(path, state, [path.name])
    startup_checks.check_sends(path, state, ())
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FileDamaged, match="backup"):
        startup_checks.check_sends(path, state, [path.name])


# ---- the whole program


@contextlib.asynccontextmanager
async def worked(home: Path) -> AsyncIterator[WorkedCoordinator]:
    service = await worked_service(home)
    running = asyncio.create_task(service.run())
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            await service.ready.wait()
            yield WorkedCoordinator(service, session)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_a_coordinator_goes_on_without_its_files_and_uses_them_when_they_are_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "archive.sqlite").write_bytes(b"this is no database" * 500)
    async with worked(tmp_path) as home:
        found = await home.problems()
        assert (
            "--begin-anew documents.sqlite" in found["documents"]
            and "archive.sqlite" in found["archive"]
        ), found
        async with home.session.get(f"{home.service.url}/v1/runs/0x{'11' * 32}") as response:
            assert response.status == 503 and "archive.sqlite" in (await response.json())["detail"]
        async with home.session.get(f"{home.service.url}/metrics") as response:
            assert response.status == 200
        FileArchive(tmp_path / "whole.sqlite").close()
        DocumentFile(tmp_path / "documents.sqlite", KEEPING).close()
        (tmp_path / "whole.sqlite").rename(tmp_path / "archive.sqlite")
        async with home.session.get(f"{home.service.url}/v1/runs/0x{'11' * 32}") as response:
            assert response.status == 401, "it cannot know who asks"
        async with home.session.get(f"{home.service.url}/metrics") as response:
            assert response.status == 200
        assert "documents" not in await home.problems()
    assert {path.name for path in tmp_path.iterdir()} >= set(FILES_KEPT)
