"""Tests that spec and receipt of a job reach the store, whatever happens between verdict and
archive.
"""

from pathlib import Path

import pytest

from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import ArchiveRuns, Effect, StoreReceipt, StoreSpec
from quorate_coordinator.storage.document_file import SPARE_BYTES, DocumentFile
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.stored_effects import ArchiveWriter, JobDocuments
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from support.markets.scripted_market import Market, Party
from support.memory_archive import MemoryArchive

KEEPING = Keeping(64 << 20, 180 * DAY_SECONDS)


def stored(file: DocumentFile, data: bytes) -> bool:
    """Returns whether exactly these bytes can be read."""
    return file.get(sha256(data)) == data


async def test_a_job_leaves_only_when_its_documents_are_stored(tmp_path: Path) -> None:
    market = Market(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    (receipt,), submission = market.receipts, market.core.state.jobs[job_id].submission
    spec, terms = submission.spec.encode(), submission.terms.encode()
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING)
    documents = JobDocuments(market.core, file)
    history = RunReader(market.core.state, MemoryArchive())
    away = True

    async def keep(job: Hash32) -> None:
        if away:
            raise Unavailable("the store's disk is full", 1.0)
        await documents.store_before_leaving(job)

    async def submit(event: ev.RunsArchived) -> object:
        assert all(stored(file, data) for data in (receipt, spec, terms)), (
            "told that they may go, with a document missing"
        )
        return market.send(event)

    archive_writer = ArchiveWriter(
        history, Outputs(market.core.state, history.archive), submit, keep, file.drop
    )
    with pytest.raises(Unavailable):
        await archive_writer(ArchiveRuns("archive", (job_id,)))
    assert history.archive.run(job_id) is None and job_id in market.core.state.jobs
    away = False
    await archive_writer(ArchiveRuns("archive", (job_id,)))
    assert history.archive.run(job_id) is not None
    file.close()


async def test_document_effects_may_come_in_any_order_and_repeatedly(tmp_path: Path) -> None:
    """Once a job has left the state, its effects store nothing."""
    market = Market(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    effects = [effect for effect in market.chain if isinstance(effect, StoreSpec | StoreReceipt)]
    assert [type(effect) for effect in effects] == [StoreSpec, StoreReceipt]
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING)
    documents = JobDocuments(market.core, file)
    for _ in range(2):
        for effect in effects:
            await documents.store_for(effect)
        await documents.store_before_leaving(job_id)
    assert stored(file, market.receipts[0])
    file.close()
    with market.core.state.transaction():
        del market.core.state.jobs[job_id]
    empty = DocumentFile(tmp_path / "empty.sqlite", KEEPING)
    for effect in effects:
        await JobDocuments(market.core, empty).store_for(effect)
    await JobDocuments(market.core, empty).store_before_leaving(job_id)
    assert not stored(empty, market.receipts[0])
    empty.close()


class PerformingMarket(Market):
    """A market that performs documents and archiving as the outbox does.

    An effect that is `Unavailable` stays. An effect that is `Refused` is done.
    """

    def __init__(self, file: DocumentFile, *parties: Party) -> None:
        self.outbox: list[StoreSpec | StoreReceipt | ArchiveRuns] = []
        super().__init__(*parties)
        self.documents = JobDocuments(self.core, file)
        self.history = RunReader(self.core.state, MemoryArchive())
        self.archive_writer = ArchiveWriter(
            self.history,
            Outputs(self.core.state, self.history.archive),
            self.told,
            self.documents.store_before_leaving,
            file.drop,
        )

    async def told(self, event: ev.RunsArchived) -> object:
        return self.send(event)

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, StoreSpec | StoreReceipt | ArchiveRuns):
            self.outbox.append(effect)

    async def perform_all(self) -> None:
        """Performs each waiting effect once."""
        waiting, self.outbox = self.outbox, []
        for effect in waiting:
            try:
                await (
                    self.archive_writer(effect)
                    if isinstance(effect, ArchiveRuns)
                    else self.documents.store_for(effect)
                )
            except Unavailable:
                self.outbox.append(effect)


async def test_a_full_document_store_delays_jobs_and_loses_none(tmp_path: Path) -> None:
    """Ten jobs end while the file is full. Then the file gets more room, and each job is
    archived with its receipt.
    """
    file = DocumentFile(
        tmp_path / "documents.sqlite", Keeping(SPARE_BYTES + (128 << 10), 180 * DAY_SECONDS)
    )
    fillers = 0
    with pytest.raises(Unavailable):
        for fillers in range(1000):
            await file.put(
                fillers.to_bytes(4, "big")
                + bytes(range(256)) * 8
                + sha256(str(fillers).encode()) * 60
            )
    assert fillers
    market = PerformingMarket(file, *(Party(number) for number in range(4)))
    jobs = []
    for number in range(1, 11):
        jobs.append(market.order(0, number))
        market.until_decided(jobs[-1])
        await market.perform_all()
    for _ in range(100):
        market.beat()
        await market.perform_all()
    waiting = [effect for effect in market.outbox if isinstance(effect, ArchiveRuns)]
    assert {job for effect in waiting for job in effect.jobs} == set(jobs), (
        "all are over, and none may leave"
    )
    assert (
        all(job in market.core.state.jobs for job in jobs) and market.history.archive.count() == 0
    )
    assert len(market.receipts) == 10 and not any(
        stored(file, receipt) for receipt in market.receipts
    )
    file.keeping = KEEPING
    await market.perform_all()
    assert market.outbox == [] and not any(job in market.core.state.jobs for job in jobs)
    assert all(market.history.archive.run(job) is not None for job in jobs)
    assert all(stored(file, receipt) for receipt in market.receipts)
    file.close()
