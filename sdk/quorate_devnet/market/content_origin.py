"""Where the content of a demo comes from: not the coordinator, but an IPFS network of two peers.

One peer holds the content. The other one gets it by bitswap and serves it as a trustless gateway,
which the providers are given. Without the peers' program, this process serves the same content as
a gateway itself.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_devnet.market.ipfs_peer import ipfs_peer

OWNER = "demo"
STORE_BYTES = 4 << 30
INSTEAD = "no IPFS peer is built here; with Go, .ci/make-gopeer builds one"


@dataclass(frozen=True, slots=True)
class ContentOrigin:
    """A gateway with content. `kind` is "ipfs" for peers with bitswap, else "gateway"; `instead`
    then says what it stands for, and the remedy.
    """

    kind: str
    gateway: str
    add: Callable[[Path], Awaitable[str]]
    """Takes in a file and returns its CID."""
    instead: str = ""


@asynccontextmanager
async def content_origin(program: Path | None, folder: Path) -> AsyncIterator[ContentOrigin]:
    """Serves content while the block lasts: with IPFS peers made from `program`, else from
    `folder`. Raises Unavailable if the program does not start.
    """
    opened = _own_gateway(folder) if program is None else _network(program)
    async with opened as origin:
        yield origin


@asynccontextmanager
async def _network(program: Path) -> AsyncIterator[ContentOrigin]:
    async with ipfs_peer(program) as holder, ipfs_peer(program) as gateway:
        await gateway.connect(holder)

        async def add(path: Path) -> str:
            return await holder.add(await asyncio.to_thread(path.read_bytes))

        yield ContentOrigin("ipfs", gateway.started.gateway, add)


@asynccontextmanager
async def _own_gateway(folder: Path) -> AsyncIterator[ContentOrigin]:
    store, app = ContentStore(folder, STORE_BYTES), web.Application()
    add_gateway_routes(app, store)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)

    async def add(path: Path) -> str:
        return str((await store.put(path, OWNER)).cid)

    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield ContentOrigin("gateway", url, add, INSTEAD)
    finally:
        await runner.cleanup()
        await store.close()
