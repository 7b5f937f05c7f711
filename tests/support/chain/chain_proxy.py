"""A handler that stands between a program and its chain node."""

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
    """A client whose every question goes to `handle`."""
    application = web.Application()
    application.router.add_post("/", handle)
    async with aiohttp.ClientSession() as session, on_loopback(application) as url:
        yield ChainClient(Rpc(url, session))
