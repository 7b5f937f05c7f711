"""A container registry on loopback, and one in front of it that lies."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

START_SECONDS = 20.0
_CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextlib.asynccontextmanager
async def registry(folder: Path) -> AsyncIterator[str]:
    """Debian's docker-registry without a login; yields host:port."""
    port = free_port()
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder / "blobs", port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log, cwd=folder)
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
            while not await _answers(session, f"http://127.0.0.1:{port}/v2/"):
                assert process.poll() is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextlib.asynccontextmanager
async def before(host: str, change: Callable[[str, bytes, dict[str, str]], bytes]) -> AsyncIterator[str]:
    """A registry that passes everything on, manifests through `change(path, body, headers)`; yields host:port."""

    async def handle(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name in ("Accept", "Authorization")}
        async with session.request(request.method, f"http://{host}{request.path_qs}", headers=headers) as response:
            body = await response.read()
            kept = {
                name: value
                for name, value in response.headers.items()
                if name in ("Content-Type", "Docker-Content-Digest", "Docker-Distribution-Api-Version")
            }
            if "/manifests/" in request.path and response.status == 200:
                body = change(request.path, body, kept)
            return web.Response(status=response.status, body=body, headers=kept)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await runner.cleanup()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False  # it has not begun to listen yet
