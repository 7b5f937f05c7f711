"""Images of a registry: submitting resolves the tag to a digest, providers fetch by digest, and no
registry can swap the image.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import docker
import pytest

from quorate.base.errors import EvidenceError, UnavailableError, UsageError
from quorate.images import read_archive
from quorate.images.tag_resolution import KINDS, resolve
from quorate_content.images.image_names import TaggedImage, parse_tagged
from quorate_devnet.chain.free_port import free_port
from quorate_node.executors.docker.image_loader import ImageLoader
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.executor_cases import ending, make_executor, python_task, said
from support.executors.registries import before, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry]


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "registry").mkdir()
    async with registry(tmp_path / "registry") as address:
        yield address


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


def push(engine: docker.APIClient, archive: Path, name: str) -> None:
    """Pushes the archive as `name` to the registry and removes its name from the engine."""
    ImageLoader(engine).ensure(archive, ("python3",))
    engine.tag(f"sha256:{read_archive(archive).config_digest}", name)
    events = [json.loads(line) for line in engine.push(name).splitlines()]
    assert not [event for event in events if "error" in event], events
    engine.remove_image(name, force=True)  # the name only: other programs run the same image


def tagged(host: str) -> TaggedImage:
    image = parse_tagged(f"{host}/quorate/test:v1")
    assert image is not None
    return image


async def test_a_tag_is_resolved_pulled_by_digest_and_run(
    host: str, session: aiohttp.ClientSession, engine: docker.APIClient, image: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(push, engine, image, f"{host}/quorate/test:v1")
    pinned = await resolve(session, tagged(host))
    name, _, digest = pinned.partition("@")
    assert name == f"{host}/quorate/test"
    async with session.get(
        f"http://{host}/v2/quorate/test/manifests/{digest}", headers={"Accept": KINDS[-1]}
    ) as response:
        assert "sha256:" + hashlib.sha256(await response.read()).hexdigest() == digest
    async with ending(make_executor("docker-runc", tmp_path), "docker-runc", tmp_path) as executor:
        assert (
            await said(executor, python_task(pinned, "print('from the registry')"))
            == b"from the registry\n"
        )


async def test_a_manifest_swapped_at_submit_is_refused(
    host: str, session: aiohttp.ClientSession, engine: docker.APIClient, image: Path
) -> None:
    await asyncio.to_thread(push, engine, image, f"{host}/quorate/test:v1")
    async with before(host, lambda path, body, headers: body + b"\n") as liar:
        with pytest.raises(EvidenceError, match="sent a manifest with digest"):
            await resolve(session, tagged(liar))


async def test_a_manifest_swapped_at_the_pull_is_refused(
    host: str, session: aiohttp.ClientSession, engine: docker.APIClient, image: Path, tmp_path: Path
) -> None:
    """The registry may even claim the requested digest, because the received bytes are hashed."""
    await asyncio.to_thread(push, engine, image, f"{host}/quorate/test:v1")
    async with before(host, lambda path, body, headers: body + b"\n") as liar:
        digest = (await resolve(session, tagged(host))).partition("@")[2]
        executor = make_executor("docker-runc", tmp_path)
        task = python_task(f"{liar}/quorate/test@{digest}", "print('swapped')")
        try:
            with pytest.raises(Refused) as refusal:
                await executor.start(task)
            assert refusal.value.code is Code.MALFORMED
            assert "sends wrong bytes" in refusal.value.detail
            assert await executor.leases() == []
        finally:
            await executor.close()


async def test_a_digest_that_the_registry_lacks_is_refused(host: str, tmp_path: Path) -> None:
    executor = make_executor("docker-runc", tmp_path)
    try:
        with pytest.raises(Refused) as refusal:
            await executor.start(python_task(f"{host}/quorate/none@sha256:{'0' * 64}", ""))
        assert refusal.value.code is Code.UNKNOWN
        with pytest.raises(Unavailable):
            await executor.start(
                python_task(
                    f"127.0.0.1:{free_port('127.0.0.1')}/quorate/none@sha256:{'0' * 64}", ""
                )
            )
    finally:
        await executor.close()


async def test_unresolvable_tags_are_refused(host: str, session: aiohttp.ClientSession) -> None:
    with pytest.raises(UsageError, match="public image"):
        await resolve(session, tagged(host))
    with pytest.raises(UnavailableError, match="does not answer"):
        await resolve(session, tagged(f"127.0.0.1:{free_port('127.0.0.1')}"))


async def test_an_endless_registry_answer_is_refused(
    host: str, session: aiohttp.ClientSession, engine: docker.APIClient, image: Path
) -> None:
    await asyncio.to_thread(push, engine, image, f"{host}/quorate/test:v1")
    async with before(host, lambda path, body, headers: bytes(5 << 20)) as liar:
        with pytest.raises(UnavailableError, match="more than"):
            await resolve(session, tagged(liar))
