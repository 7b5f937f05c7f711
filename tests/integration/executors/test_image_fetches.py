"""Images of registries that mean harm: fetched beside everything else, within a deadline, a
pace, a size and the owner's network.
"""

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import docker
import docker.errors
import pytest
from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.threads import StopSignal
from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_node.executors.docker.image_fetches import FETCHES_MAX
from quorate_node.executors.docker.image_loader import ImageLoader, ImagePolicy
from quorate_node.images import registry_http
from quorate_node.images.registry_http import TransferRate
from quorate_node.images.registry_image import fetch_archive, parse_pinned
from quorate_node.jobs.job_runner import JobRunner
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import MIB, ending, new_lease, owner, python_task
from support.executors.image_archives import entry, image_entries, tar
from support.executors.registries import Served, digest_of, served, serving
from support.http_server import on_loopback
from support.markets.provider_world import make_spec

pytestmark = pytest.mark.docker

RULES = ImagePolicy(private=None)
SECONDS = 3.0  # long enough to be told from nothing


def executing(
    folder: Path, policy: ImagePolicy = RULES
) -> contextlib.AbstractAsyncContextManager[DockerExecutor]:
    made = DockerExecutor(
        folder / "leases", owner(folder), SystemClock(), sandbox=Sandbox.DOCKER_RUNC, policy=policy
    )
    return ending(made, "docker-runc", folder)


def small(folder: Path, size: int = 1000, name: str = "small") -> Path:
    """An archive nobody else has, whose one file has so many random bytes."""
    path = folder / f"{name}.tar"
    path.write_bytes(tar(image_entries([tar([entry("x", os.urandom(size))])], {"Cmd": ["/x"]})))
    return path


def image_ids(engine: docker.APIClient) -> set[str]:
    return {item["Id"] for item in engine.images(all=True)}


async def drip(request: web.Request, body: bytes) -> web.StreamResponse | None:
    """Layers at a hundred bytes a second, without end."""
    if "/blobs/" not in request.path or body.startswith(b"{"):
        return None
    response = web.StreamResponse(headers={"Content-Length": str(1 << 30)})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # the provider hangs up, which is what is tested
        while True:
            await response.write(b"x" * 10)
            await asyncio.sleep(0.1)
    return response


async def closed(asked: list[web.Request]) -> None:
    """Once every connection to the registry is closed."""
    async with asyncio.timeout(10):
        while any(
            request.transport is not None and not request.transport.is_closing()
            for request in asked
        ):
            await asyncio.sleep(0.02)


async def test_a_registry_that_drips_holds_nobody_up_and_ends_at_its_deadline(
    image: Path, tmp_path: Path
) -> None:
    images = [
        served(small(tmp_path, name=str(index)), layer=1 << 30) for index in range(FETCHES_MAX + 1)
    ]
    patient = replace(
        RULES, pace=TransferRate(1, 300.0, 300.0)
    )  # so that nothing but the deadline ends them
    async with executing(tmp_path, patient) as executor, contextlib.AsyncExitStack() as stack:
        names = [await stack.enter_async_context(serving(image, drip)) for image in images]
        leases = [new_lease() for _ in names]
        fetches = [
            asyncio.create_task(executor.fetch_image(lease, name, 500.0))
            for lease, (name, _) in zip(leases, names, strict=True)
        ]
        await dripping([asked for _, asked in names], FETCHES_MAX)
        task = python_task(image, "print('beside')")
        async with asyncio.timeout(60):
            await executor.start(task)
            assert (await executor.wait(task.lease_id)).status == 0
        assert not any(fetch.done() for fetch in fetches), (
            "a local job runs while the registries drip"
        )
        for lease in leases:
            await executor.remove(lease)
        await asyncio.gather(*fetches, return_exceptions=True)
        begun = time.monotonic()
        again = (executor.fetch_image(new_lease(), name, SECONDS) for name, _ in names)
        ends = await asyncio.gather(*again, return_exceptions=True)
        assert all(isinstance(end, Unavailable) for end in ends), ends
        assert SECONDS - 1.0 <= time.monotonic() - begun <= SECONDS + 30.0
        for _, asked in names:
            await closed(asked)


async def dripping(lists: list[list[web.Request]], count: int) -> None:
    """Once so many registries were asked for blobs."""
    async with asyncio.timeout(20):
        while sum(any("/blobs/" in request.path for request in asked) for asked in lists) < count:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["pace", "stop", "remove", "close"])
async def test_what_ends_a_fetch_before_its_deadline(tmp_path: Path, way: str) -> None:
    rules = (
        replace(RULES, pace=TransferRate(100_000, grace_seconds=1.0)) if way == "pace" else RULES
    )
    async with (
        executing(tmp_path, rules) as executor,
        serving(served(small(tmp_path), layer=1 << 30), drip) as (name, asked),
    ):
        lease = new_lease()
        fetch = asyncio.create_task(executor.fetch_image(lease, name, 500.0))
        await dripping([asked], 1)
        match way:
            case "stop":
                await executor.stop(lease)
            case "remove":
                await executor.remove(lease)
            case "close":
                executor._fetches.close()
        async with asyncio.timeout(10):
            with pytest.raises(
                Unavailable, match="bytes a second" if way == "pace" else "has ended"
            ):
                await fetch
        await closed(asked)


@pytest.mark.parametrize("has_index", [False, True])
async def test_an_image_is_fetched_once_and_runs(
    image: Path, tmp_path: Path, engine: docker.APIClient, has_index: bool
) -> None:
    offered = served(
        image,
        has_index=has_index,
        config_changes={"Labels": {"test": tmp_path.name}, "Volumes": {"/data": {}}},
    )
    async with executing(tmp_path) as executor, serving(offered) as (name, asked):
        await asyncio.gather(*(executor.fetch_image(new_lease(), name, 60.0) for _ in range(3)))
        paths = [request.path for request in asked]
        assert len(paths) == len(set(paths)) == len(offered.content)
        assert not list((tmp_path / "leases-images" / "pulls").iterdir()), (
            "nothing is left of the fetch"
        )
        task = python_task(name, "print(open('/proc/mounts').read().count(' /data tmpfs '))")
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        assert (
            b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=True)]) == b"1\n"
        )
        assert len(asked) == len(paths), "the engine asks no registry"
    engine.remove_image(offered.config)


async def test_no_login_of_the_owner_leaves(
    tmp_path: Path, engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's client would read the owner's logins from here, and send them."""
    image = served(small(tmp_path))
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
    """A registry with anonymous tokens that sends blobs to another path."""
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


async def test_an_image_larger_than_the_room_is_refused_before_it_is_fetched(
    tmp_path: Path,
) -> None:
    image = served(small(tmp_path, 64 << 10))
    async with (
        executing(tmp_path, replace(RULES, bytes_max=32 << 10)) as executor,
        serving(image) as (name, asked),
    ):
        with pytest.raises(Refused, match="room for 32768") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.OVERSIZE
        assert not [request for request in asked if "/blobs/" in request.path]


@pytest.mark.parametrize("lie", ["size", "blob", "manifest"])
async def test_a_registry_that_lies(tmp_path: Path, engine: docker.APIClient, lie: str) -> None:
    """More bytes than the manifest says, other bytes, another manifest: its digest is all that
    is believed.
    """
    image = served(small(tmp_path, 64 << 10), **({"layer": 1000} if lie == "size" else {}))

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse | None:
        if (lie == "blob" and image.layers[0] in request.path) or (
            lie == "manifest" and "/manifests/" in request.path
        ):
            return web.Response(body=body[:-1] + b" ")
        return None

    async with executing(tmp_path) as executor, serving(image, answer) as (name, _):
        with pytest.raises(Refused, match="something else") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.MALFORMED
    assert image.config not in image_ids(engine)


async def test_what_unpacks_to_more_than_there_is_room_for(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    """Thirty MiB of zeros in thirty KiB: what it is sent as is no measure."""
    path = tmp_path / "zeros.tar"
    path.write_bytes(
        tar(
            image_entries(
                [tar([entry("x", bytes(30 * MIB)), entry("y", os.urandom(10))])], {"Cmd": ["/x"]}
            )
        )
    )
    image = served(path)
    assert sum(len(image.content[layer]) for layer in image.layers) < 1 * MIB
    async with (
        executing(tmp_path, replace(RULES, kept_bytes_max=16 * MIB)) as executor,
        serving(image) as (name, _),
    ):
        with pytest.raises(Refused) as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.OVERSIZE
    assert image.config not in image_ids(engine)


async def test_the_longest_unused_images_go_and_never_the_owners(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    images, theirs = (
        [served(small(tmp_path, 3 * MIB, str(index))) for index in range(4)],
        small(tmp_path, 3 * MIB, "theirs"),
    )
    known = ImageLoader(engine).ensure(theirs, ())
    async with (
        executing(tmp_path, replace(RULES, kept_bytes_max=10 * MIB)) as executor,
        contextlib.AsyncExitStack() as stack,
    ):
        names = [(await stack.enter_async_context(serving(image)))[0] for image in images]
        stack.callback(
            remove_images, engine, [known.reference, *(image.config for image in images)]
        )
        await asyncio.to_thread(executor._images.ensure, theirs, ())
        for name in (
            *names[:3],
            names[0],
            names[3],
        ):  # the first is used again, so the second is the longest unused
            await executor.fetch_image(new_lease(), name, 60.0)
        held = image_ids(engine)
        assert [image.config in held for image in images] == [True, False, True, True]
        assert known.reference in held, "the engine had it before the job came"


async def test_images_that_somebody_needs_stay(tmp_path: Path, engine: docker.APIClient) -> None:
    """One is in a container, the other got a name: nothing can go, and the third waits."""
    images = [served(small(tmp_path, 3 * MIB, str(index))) for index in range(3)]
    held, tag = f"holds-{tmp_path.name}", "quorate-test-owners:v1"
    async with (
        executing(tmp_path, replace(RULES, kept_bytes_max=8 * MIB)) as executor,
        contextlib.AsyncExitStack() as stack,
    ):
        names = [(await stack.enter_async_context(serving(image)))[0] for image in images]
        stack.callback(remove_images, engine, [tag, *(image.config for image in images)])
        for name in names[:2]:
            await executor.fetch_image(new_lease(), name, 60.0)
        engine.create_container_from_config({"Image": images[0].config}, held)
        stack.callback(engine.remove_container, held, force=True)
        engine.tag(images[1].config, *tag.split(":"))
        with pytest.raises(Unavailable, match="no room"):
            await executor.fetch_image(new_lease(), names[2], 60.0)
        assert [image.config in image_ids(engine) for image in images] == [True, True, False]


def remove_images(engine: docker.APIClient, references: list[str]) -> None:
    for reference in references:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.remove_image(reference, force=True)


async def test_a_registry_in_the_owners_own_network_is_not_asked(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    """Loopback stands for all of it; unit tests have the other addresses. An image that the
    owner names may come from there.
    """
    image = served(small(tmp_path))
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
    """127.0.0.1 plays the public address, for nothing public is reachable here; 127.0.0.2 is the
    owner's.
    """
    monkeypatch.setattr(registry_http, "is_public", lambda address: str(address) == "127.0.0.1")

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse | None:
        there = f"http://127.0.0.2:{request.url.port}/secret"
        if way == "token":
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{there}"'})
        return (
            web.Response(status=307, headers={"Location": there})
            if "/blobs/" in request.path
            else None
        )

    image, rules = served(small(tmp_path)), replace(RULES, private=frozenset())
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
    """No engine is asked: nothing of it was believed."""

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


async def test_blobs_by_https_from_a_known_certificate_only(
    tmp_path: Path, engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As public registries have it: each blob is at another host, by HTTPS."""
    image, secret = served(small(tmp_path)), certificate(tmp_path)

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
    """One file with a key and a certificate of its own for 127.0.0.1."""
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


async def test_the_fetch_of_a_lease_has_the_leases_deadline(tmp_path: Path) -> None:
    """What the daemon calls before it starts a job: inputs and image, by commitBy."""
    store = ContentStore(tmp_path / "store", 1 << 20)
    try:
        async with (
            executing(tmp_path) as executor,
            serving(served(small(tmp_path), layer=1 << 30), drip) as (name, asked),
        ):
            bench, begun = (
                JobRunner(executor, store, tmp_path / "home", SystemClock(), {}),
                time.monotonic(),
            )
            spec = replace(make_spec(), image=name)
            with pytest.raises(Unavailable, match="deadline"):
                await bench.fetch(new_lease(), spec, (), 3.0)
            assert time.monotonic() - begun < 20.0
            await closed(asked)
    finally:
        await store.close()


def test_a_name_that_no_resolver_takes() -> None:
    registry = registry_http.RegistryHttp("a..b", "x", False, StopSignal(5.0), TransferRate())
    with pytest.raises(Refused, match="no name"), registry.get("manifests/x"):
        raise AssertionError("nobody answers")
