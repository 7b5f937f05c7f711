"""A container registry on loopback, and a dishonest registry in front of it."""

import asyncio
import contextlib
import gzip
import hashlib
import json
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from quorate_devnet.chain.free_port import free_port
from support.http_server import on_loopback

START_SECONDS = 20.0
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextlib.asynccontextmanager
async def registry(folder: Path) -> AsyncIterator[str]:
    """Debian's docker-registry without a login; yields host:port."""
    port = free_port("127.0.0.1")
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder / "blobs", port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
            while not await _answers(session, f"http://127.0.0.1:{port}/v2/"):
                assert process.poll() is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextlib.asynccontextmanager
async def before(
    host: str, change: Callable[[str, bytes, dict[str, str]], bytes]
) -> AsyncIterator[str]:
    """Runs a registry that forwards all requests and passes manifests through `change(path, body,
    headers)`.

    Yields host:port.
    """

    async def handle(request: web.Request) -> web.Response:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("Accept", "Authorization")
        }
        async with session.request(
            request.method, f"http://{host}{request.path_qs}", headers=headers
        ) as response:
            body = await response.read()
            kept = {
                name: value
                for name, value in response.headers.items()
                if name
                in ("Content-Type", "Docker-Content-Digest", "Docker-Distribution-Api-Version")
            }
            if "/manifests/" in request.path and response.status == 200:
                body = change(request.path, body, kept)
            return web.Response(status=response.status, body=body, headers=kept)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    async with aiohttp.ClientSession() as session, on_loopback(app) as url:
        yield url.removeprefix("http://")


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False  # it does not listen yet


@dataclass(frozen=True, slots=True)
class Served:
    """An image as a registry has it: the manifest's digest, and each document and blob by
    digest.
    """

    digest: str
    content: dict[str, bytes]
    config: str  # digest of the configuration; the engine uses it as the image's id
    layers: tuple[str, ...]


def served(
    archive: Path,
    *,
    has_index: bool = False,
    config_changes: Mapping[str, object] | None = None,
    **sizes: int,
) -> Served:
    """Returns what a registry would hold of a docker archive, with compressed layers.

    `sizes` are false sizes in the manifest, of `config` and `layer`.
    """
    with tarfile.open(archive) as file:
        manifest = json.loads(_member(file, "manifest.json"))[0]
        config = json.loads(_member(file, manifest["Config"]))
        layers = [gzip.compress(_member(file, name), 1, mtime=0) for name in manifest["Layers"]]
    config["config"].update(config_changes or {})
    body = json.dumps(config).encode()
    content = {digest_of(blob): blob for blob in (body, *layers)}
    document = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"digest": digest_of(body), "size": sizes.get("config", len(body))},
            "layers": [
                {
                    "mediaType": LAYER,
                    "digest": digest_of(blob),
                    "size": sizes.get("layer", len(blob)),
                }
                for blob in layers
            ],
        }
    ).encode()
    content[digest_of(document)] = document
    if has_index:
        entries = [
            ("linux", "s390x", "sha256:" + "0" * 64),
            ("linux", "amd64", digest_of(document)),
        ]
        found = [
            {"digest": digest, "platform": {"os": os, "architecture": kind}}
            for os, kind, digest in entries
        ]
        document = json.dumps({"schemaVersion": 2, "manifests": found}).encode()
        content[digest_of(document)] = document
    return Served(
        digest_of(document), content, digest_of(body), tuple(digest_of(blob) for blob in layers)
    )


@contextlib.asynccontextmanager
async def serving(
    image: Served,
    answer: Callable[[web.Request, bytes], Awaitable[web.StreamResponse | None]] | None = None,
) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """Runs a registry with one image; yields (name@digest, requests).

    `answer` may replace each response. If it returns None, the registry answers as usual.
    """
    asked: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        body = image.content.get(request.path.rpartition("/")[2], b"")
        said = await answer(request, body) if answer else None
        return said or (web.Response(body=body) if body else web.Response(status=404))

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    async with on_loopback(app) as url:
        yield f"{url.removeprefix('http://')}/some/image@{image.digest}", asked


def digest_of(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
