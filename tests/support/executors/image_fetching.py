"""Helpers for tests that fetch images from a registry into a Docker engine."""

import asyncio
import contextlib
import os
from pathlib import Path

import docker
import docker.errors
from aiohttp import web

from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_node.executors.docker.image_loader import ImagePolicy
from quorate_protocol.messages.ports import Sandbox
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import ending, owner
from support.executors.image_archives import entry, image_entries, tar

RULES = ImagePolicy(private=None)


def executing(
    folder: Path, policy: ImagePolicy = RULES
) -> contextlib.AbstractAsyncContextManager[DockerExecutor]:
    made = DockerExecutor(
        folder / "leases", owner(folder), SystemClock(), sandbox=Sandbox.DOCKER_RUNC, policy=policy
    )
    return ending(made, "docker-runc", folder)


def small_archive(folder: Path, size: int = 1000, name: str = "small") -> Path:
    """Writes a unique archive with one file of `size` random bytes."""
    path = folder / f"{name}.tar"
    path.write_bytes(tar(image_entries([tar([entry("x", os.urandom(size))])], {"Cmd": ["/x"]})))
    return path


def image_ids(engine: docker.APIClient) -> set[str]:
    return {item["Id"] for item in engine.images(all=True)}


async def send_slowly(request: web.Request, body: bytes) -> web.StreamResponse | None:
    """Sends a layer at a hundred bytes a second, without end. Returns None for other requests."""
    if "/blobs/" not in request.path or body.startswith(b"{"):
        return None
    response = web.StreamResponse(headers={"Content-Length": str(1 << 30)})
    await response.prepare(request)
    # the provider closes the connection, as the test wants
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"x" * 10)
            await asyncio.sleep(0.1)
    return response


async def until_closed(asked: list[web.Request]) -> None:
    """Waits until every connection to the registry is closed."""
    async with asyncio.timeout(10):
        while any(
            request.transport is not None and not request.transport.is_closing()
            for request in asked
        ):
            await asyncio.sleep(0.02)


async def until_fetching(lists: list[list[web.Request]], count: int) -> None:
    """Waits until `count` registries were asked for blobs."""
    async with asyncio.timeout(20):
        while sum(any("/blobs/" in request.path for request in asked) for asked in lists) < count:
            await asyncio.sleep(0.02)


def remove_images(engine: docker.APIClient, references: list[str]) -> None:
    for reference in references:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.remove_image(reference, force=True)
