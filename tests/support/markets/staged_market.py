"""A scripted market with a real staging store, and a gateway on loopback that has one object."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.base.storage_sizes import StagingQuota
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.staging import Staging
from quorate_protocol.units import ZERO_HASH, BlockNumber, UnixSeconds
from support.http_server import on_loopback
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party
from support.virtual_clock import VirtualClock

MIB = 1 << 20
SHARES = StagingQuota(store_bytes=50 * MIB, bytes_per_usd=MIB, floor_bytes=MIB // 2)


@asynccontextmanager
async def stand(folder: Path) -> AsyncIterator[tuple[ArchivingMarket, Staging]]:
    """A market of four providers whose first client has 3 USD, and its coordinator's store."""
    market = ArchivingMarket(*(Party(number) for number in range(4)))
    clock, claims = VirtualClock(float(market.at)), Outputs(market.core.state, market.archive)
    rates = RequestRates(DEVNET_BOUNDS, clock.now)
    staging = Staging(folder, SHARES, market.core.state, claims, rates, clock, 20)
    tab = market.escrow.lock(market.clients[0].address, 3_000_000 - 50_000_000)
    block = BlockNumber(market.core.state.own.block + 1)
    market.send(ev.ChainAdvanced(block, ZERO_HASH, UnixSeconds(market.at), (tab,)))
    try:
        yield market, staging
    finally:
        await staging.close()


@asynccontextmanager
async def gateway(folder: Path, content: bytes) -> AsyncIterator[tuple[Source, ...]]:
    """An IPFS gateway that has `content` at hand and nothing else."""
    store, app = ContentStore(folder, 64 * MIB), web.Application()
    await store.put(content, "a")
    add_gateway_routes(app, store)
    async with on_loopback(app) as url:
        yield (Source(f"{url}/ipfs", name="gateway", searches=True),)
    await store.close()
