"""Spec and receipt of a job reach the store, whatever happens between verdict and archive: no effect carries them."""

from pathlib import Path

import pytest

from quorate_content.cid import parse
from quorate_content.store import ContentStore
from quorate_coordinator.adapters.archivist import Archivist
from quorate_coordinator.adapters.documents import Documents
from quorate_coordinator.adapters.history import History
from quorate_coordinator.adapters.outputs import Outputs
from quorate_coordinator.archive import MemoryArchive
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import ArchiveRuns, StoreReceipt, StoreSpec
from quorate_protocol.cids import document_cid
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from scripted_market import Market, Party


async def stored(store: ContentStore, data: bytes) -> bool:
    """Whether exactly these bytes can be read."""
    cid = parse(document_cid(data))
    if await store.stat(cid) is None:
        return False
    async with await store.lease(cid) as lease:
        return lease.path.read_bytes() == data


async def test_a_job_leaves_only_when_its_documents_are_stored(tmp_path: Path) -> None:
    market = Market(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    (receipt,), spec = market.receipts, market.core.state.jobs[job_id].submission.spec.encode()
    store = ContentStore(tmp_path / "store", 1 << 26, spare_bytes=0)
    documents = Documents(market.core, store)
    history = History(market.core.state, MemoryArchive())
    away = True

    async def keep(job: Hash32) -> None:
        if away:
            raise Unavailable("the store's disk is full", 1.0)
        await documents.keep(job)

    async def submit(event: ev.RunsArchived) -> object:
        assert await stored(store, receipt) and await stored(store, spec), "told that they may go, with a document missing"
        return market.send(event)

    archivist = Archivist(history, Outputs(market.core.state, history.archive), submit, keep)
    with pytest.raises(Unavailable):
        await archivist(ArchiveRuns("archive", (job_id,)))
    assert history.archive.run(job_id) is None and job_id in market.core.state.jobs
    away = False
    await archivist(ArchiveRuns("archive", (job_id,)))
    assert history.archive.run(job_id) is not None
    await store.close()


async def test_performing_and_keeping_are_one(tmp_path: Path) -> None:
    """Each may come first, and again; after a job is gone nothing is stored anew."""
    market = Market(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    effects = [effect for effect in market.chain if isinstance(effect, StoreSpec | StoreReceipt)]
    assert [type(effect) for effect in effects] == [StoreSpec, StoreReceipt]
    store = ContentStore(tmp_path / "store", 1 << 26, spare_bytes=0)
    documents = Documents(market.core, store)
    for _ in range(2):
        for effect in effects:
            await documents.perform(effect)
        await documents.keep(job_id)
    assert await stored(store, market.receipts[0])
    await store.close()
    with market.core.state.transaction():
        del market.core.state.jobs[job_id]
    empty = ContentStore(tmp_path / "empty", 1 << 26, spare_bytes=0)
    for effect in effects:
        await Documents(market.core, empty).perform(effect)
    await Documents(market.core, empty).keep(job_id)
    assert not await stored(empty, market.receipts[0])
    await empty.close()
