"""Serves a test's handler in the place of a chain node."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from quorate_runtime.chain import ChainClient, Rpc
from support.http_server import on_loopback


@asynccontextmanager
async def through(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[ChainClient]:
    """Yields a client that sends every request to `handle`."""
    application = web.Application()
    application.router.add_post("/", handle)
    async with aiohttp.ClientSession() as session, on_loopback(application) as url:
        yield ChainClient(Rpc(url, session))
