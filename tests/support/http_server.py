"""An aiohttp application on loopback, for as long as a test wants it."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

SHUTDOWN_SECONDS = 0.1  # a test may leave an answer hanging, so the server does not wait for it


@asynccontextmanager
async def on_loopback(
    app: web.Application, *, port: int = 0, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serves an application; yields its URL without a slash at the end. Port 0 means a free
    port.
    """
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl_context).start()
        yield f"{'https' if ssl_context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
