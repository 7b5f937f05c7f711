"""Registries that lie, ask for logins, or redirect into the owner's own network."""

import asyncio
import json
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import docker
import docker.errors
import pytest
from aiohttp import web

from quorate_content.images import registry_http
from quorate_content.images.image_names import parse_pinned
from quorate_content.images.registry_http import TransferRate
from quorate_content.store import checked_http
from quorate_content.store.threads import StopSignal
from quorate_node.executors.docker.registry_image import fetch_archive
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.executor_cases import MIB, new_lease
from support.executors.image_fetching import (
    RULES,
    executing,
    image_ids,
    remove_images,
    small_archive,
)
from support.executors.registries import Served, digest_of, served, serving
from support.http_server import on_loopback

pytestmark = pytest.mark.docker


async def test_no_login_of_the_owner_is_sent(
    tmp_path: Path, engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own client would read the owner's logins from here and send them."""
    image = served(small_archive(tmp_path))
    async with executing(tmp_path) as executor, serving(image, guarded) as (name, asked):
        login = {"auths": {name.partition("/")[0]: {"auth": "b3duZXI6c2VjcmV0"}}}
        (tmp_path / "config.json").write_text(json.dumps(login))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        await executor.fetch_image(new_lease(), name, 60.0)
        sent = {request.headers.get("Authorization", "") for request in asked}
        assert sent == {"", "Bearer for-anybody"}
        blobs = [
            request.headers.get("Authorization")
            for request in asked
            if "/elsewhere/" in request.path
        ]
        assert blobs, "blobs were sent to another place"
    engine.remove_image(image.config)


async def guarded(request: web.Request, body: bytes) -> web.StreamResponse | None:
    """A registry with anonymous tokens that redirects blobs to another path."""
    if request.path == "/token":
        return web.json_response({"token": "for-anybody"})
    if request.path.startswith("/elsewhere/"):
        return None
    if request.headers.get("Authorization") != "Bearer for-anybody":
        challenge = (
            f"Bearer "
            f'realm="http://{request.host}/token",service="s",scope="repository:some/image:pull"'
        )
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})
    if "/blobs/" in request.path:
        return web.Response(
            status=307, headers={"Location": "/elsewhere/" + request.path.rpartition("/")[2]}
        )
    return None


@pytest.mark.parametrize("lie", ["size", "blob", "manifest"])
async def test_false_sizes_blobs_and_manifests_are_refused(
    tmp_path: Path, engine: docker.APIClient, lie: str
) -> None:
    """More bytes than the manifest says, other bytes, another manifest: only its digest is
    trusted.
    """
    image = served(small_archive(tmp_path, 64 << 10), **({"layer": 1000} if lie == "size" else {}))

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse | None:
        if (lie == "blob" and image.layers[0] in request.path) or (
            lie == "manifest" and "/manifests/" in request.path
        ):
            return web.Response(body=body[:-1] + b" ")
        return None

    async with executing(tmp_path) as executor, serving(image, answer) as (name, _):
        with pytest.raises(Refused, match="sends more than|sends wrong bytes") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.MALFORMED
    assert image.config not in image_ids(engine)


async def test_a_registry_in_the_owners_own_network_is_not_asked(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    """Loopback is tested here; unit tests have the other addresses.

    An image that the owner names may come from there.
    """
    image = served(small_archive(tmp_path))
    async with (
        executing(tmp_path, replace(RULES, private=frozenset({"another"}))) as executor,
        serving(image) as (name, asked),
    ):
        with pytest.raises(Refused, match="owner's own network") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.UNSUPPORTED
        assert "--image" in refusal.value.detail
        assert not asked
    (tmp_path / "named").mkdir()
    async with (
        serving(image) as (name, asked),
        executing(tmp_path / "named", replace(RULES, private=frozenset({name}))) as executor,
    ):
        await executor.fetch_image(new_lease(), name, 60.0)
        assert asked
    remove_images(engine, [image.config])


@pytest.mark.parametrize("way", ["redirect", "token"])
async def test_a_registry_cannot_lead_into_the_owners_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nothing public is reachable here, so 127.0.0.1 counts as public and 127.0.0.2 as the
    owner's.
    """
    monkeypatch.setattr(checked_http, "is_public", lambda address: str(address) == "127.0.0.1")

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse | None:
        there = f"http://127.0.0.2:{request.url.port}/secret"
        if way == "token":
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{there}"'})
        return (
            web.Response(status=307, headers={"Location": there})
            if "/blobs/" in request.path
            else None
        )

    image, rules = served(small_archive(tmp_path)), replace(RULES, private=frozenset())
    async with executing(tmp_path, rules) as executor, serving(image, answer) as (name, asked):
        with pytest.raises(Refused, match="leads to 127.0.0.2") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.UNSUPPORTED
        assert asked
        assert not [request for request in asked if "secret" in request.path]


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"layers": 1}',
        b'{"layers": [1]}',
        b'{"layers": [], "config": {}}',
        b'{"manifests": 1}',
        b'{"manifests": []}',
        (
            b'{"manifests": [{"platform": {"os": "linux", "architecture": "amd64"}, "digest": '
            b'"../x"}]}'
        ),
        b'{"layers": [{"digest": "sha256:00", "size": 1}], "config": {"digest": 1, "size": 1}}',
        json.dumps(
            {"layers": [{"digest": "sha256:" + "0" * 64, "size": 1}] * 200, "config": {}}
        ).encode(),
        *(
            json.dumps(
                {
                    name: {"digest": "sha256:" + "0" * 64, "size": size}
                    if name == "config"
                    else [{"digest": "sha256:" + "0" * 64, "size": size, "mediaType": kind}]
                    for name in ("config", "layers")
                }
            ).encode()
            for size, kind in (
                (-1, ""),
                (True, ""),
                ("1", ""),
                (1.5, ""),
                (1 << 70, ""),
                (1, "application/x.tar+zstd"),
                (1, "x"),
            )
        ),
    ],
    ids=lambda manifest: manifest[:20].decode(),
)
def test_manifests_of_every_kind_are_refused_by_type(tmp_path: Path, manifest: bytes) -> None:
    """No engine is needed: every manifest is refused before."""

    async def fetch() -> None:
        async with serving(
            Served(digest_of(manifest), {digest_of(manifest): manifest}, "", ())
        ) as (name, _):
            image, stop = parse_pinned(name), StopSignal(20.0)
            registry = registry_http.RegistryHttp(
                image.host, image.path, True, stop, TransferRate()
            )
            with pytest.raises((Refused, Unavailable)):
                await asyncio.to_thread(fetch_archive, image, registry, tmp_path, MIB, frozenset())

    asyncio.run(fetch())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


async def test_blobs_over_https_need_a_known_certificate(
    tmp_path: Path, engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in public registries: each blob is at another host, by HTTPS."""
    image, secret = served(small_archive(tmp_path)), certificate(tmp_path)

    async def blob(request: web.Request) -> web.Response:
        return web.Response(body=image.content[request.path.rpartition("/")[2]])

    app = web.Application()
    app.router.add_get("/{tail:.*}", blob)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(secret)
    async with on_loopback(app, ssl_context=context) as url:

        async def answer(request: web.Request, body: bytes) -> web.StreamResponse | None:
            there = f"{url}/{request.path.rpartition('/')[2]}"
            return (
                web.Response(status=307, headers={"Location": there})
                if "/blobs/" in request.path
                else None
            )

        try:
            async with executing(tmp_path) as executor, serving(image, answer) as (name, _):
                with pytest.raises(Unavailable, match="certificate"):
                    await executor.fetch_image(new_lease(), name, 60.0)
                monkeypatch.setenv("SSL_CERT_FILE", str(secret))
                await executor.fetch_image(new_lease(), name, 60.0)
                assert image.config in image_ids(engine)
        finally:
            remove_images(engine, [image.config])


def certificate(folder: Path) -> Path:
    """One file with a key and a certificate for 127.0.0.1."""
    words = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x "
        "-addext subjectAltName=IP:127.0.0.1"
    )
    key, signed = folder / "key.pem", folder / "signed.pem"
    subprocess.run(
        ["openssl", *words.split(), "-keyout", str(key), "-out", str(signed)],
        check=True,
        capture_output=True,
    )
    (folder / "both.pem").write_bytes(key.read_bytes() + signed.read_bytes())
    return folder / "both.pem"


def test_an_invalid_host_name_is_refused() -> None:
    registry = registry_http.RegistryHttp("a..b", "x", False, StopSignal(5.0), TransferRate())
    with pytest.raises(Refused, match="not a valid host name"), registry.get("manifests/x"):
        raise AssertionError("nobody answers")
