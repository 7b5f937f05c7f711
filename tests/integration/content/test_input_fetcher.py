"""The coordinator takes inputs that a client named by CID, and did not upload, from IPFS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from quorate_content.dag.cid import raw_cid
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.fetch_order import Source
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_coordinator.core import events as ev
from quorate_coordinator.rate_limits import RequestRates
from quorate_coordinator.request_limits import DEVNET_BOUNDS
from quorate_coordinator.storage.input_fetcher import InputFetcher, wanted_by
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.staging import Staging
from quorate_coordinator.storage.staging_quota import StagingQuota
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Amount, BlockNumber, UnixSeconds
from quorate_runtime.clock import SystemClock, VirtualClock
from support.http_server import on_loopback
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party

MIB = 1 << 20
SHARES = StagingQuota(
    store_bytes=50 * MIB, account_bytes=10 * MIB, bytes_per_usd=MIB, floor_bytes=MIB // 2
)
IMAGE = b"image"  # what every order of the scripted market names by its CID
SECONDS = 20.0


@asynccontextmanager
async def stand(folder: Path) -> AsyncIterator[tuple[ArchivingMarket, Staging]]:
    market = ArchivingMarket(*(Party(number) for number in range(4)))
    clock, claims = VirtualClock(float(market.at)), Outputs(market.core.state, market.archive)
    rates = RequestRates(DEVNET_BOUNDS, clock.now)
    staging = Staging(folder, SHARES, market.core.state, claims, rates, clock, 20)
    allocation = ev.ChainAllocationChanged(market.clients[0].address, Amount(3_000_000))
    block = BlockNumber(market.core.state.own.block + 1)
    market.send(ev.ChainAdvanced(block, ZERO_HASH, UnixSeconds(market.at), (allocation,)))
    try:
        yield market, staging
    finally:
        await staging.close()


@asynccontextmanager
async def gateway(folder: Path, content: bytes) -> AsyncIterator[tuple[Source, ...]]:
    store, app = ContentStore(folder, 64 * MIB), web.Application()
    await store.put(content, "a")
    add_gateway_routes(app, store)
    async with on_loopback(app) as url:
        yield (Source(f"{url}/ipfs", name="gateway", searches=True),)
    await store.close()


@pytest.mark.rule("4.26")
async def test_an_input_that_was_not_uploaded_is_kept_for_its_run(tmp_path: Path) -> None:
    """Otherwise it may be gone from IPFS when an auditor or a juror needs it."""
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", IMAGE) as sources,
    ):
        fetcher = InputFetcher(market.core.state, staging, sources, SystemClock())
        task = asyncio.create_task(fetcher.run())
        market.order(0, 1)
        async with asyncio.timeout(SECONDS):
            while await staging.uploads.resolve(raw_cid(IMAGE).digest) is None:
                await asyncio.sleep(0)
            while not await staging.uploads.owned():
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        client = "0x" + market.clients[0].address.hex()
        assert await staging.uploads.owned() == {client: 64 << 10}


async def test_an_input_has_at_most_the_bytes_that_its_job_declares(tmp_path: Path) -> None:
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", bytes(2 * MIB)) as sources,
    ):
        client, store = market.clients[0].address, staging.uploads
        other = ContentStore(tmp_path / "other", 64 * MIB)
        cid = (await other.put(bytes(2 * MIB), "a")).cid
        await other.close()
        with pytest.raises(Refused) as refused:
            await staging.take_in(cid, client, MIB, sources, SECONDS)
        assert refused.value.code is Code.OVERSIZE
        with pytest.raises(Unavailable, match="gateway: "):
            await staging.take_in(raw_cid(b"nobody has it"), client, MIB, sources, SECONDS)
        with pytest.raises(Refused, match="no allocation"):
            await staging.take_in(cid, Address(b"\x55" * 20), MIB, sources, SECONDS)
        await staging.take_in(cid, client, 2 * MIB, sources, SECONDS)
        assert await store.stat(cid) is not None


async def test_a_run_names_its_image_and_its_inputs(tmp_path: Path) -> None:
    async with stand(tmp_path / "staging") as (market, _):
        job = market.core.state.jobs[market.order(0, 1)]
        (wanted,) = wanted_by(job)
        assert (wanted.cid, wanted.client) == (raw_cid(IMAGE), market.clients[0].address)
        assert wanted.bytes_max == job.submission.spec.image_bytes
