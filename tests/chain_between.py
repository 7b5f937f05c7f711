"""A handler that stands between a program and its chain node."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from quorate_runtime.chain import ChainClient, Rpc


@asynccontextmanager
async def through(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[ChainClient]:
    """A client whose every question goes to `handle`."""
    application = web.Application()
    application.router.add_post("/", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield ChainClient(Rpc(f"http://127.0.0.1:{runner.addresses[0][1]}", session))
    await runner.cleanup()
