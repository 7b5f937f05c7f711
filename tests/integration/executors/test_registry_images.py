"""Tests images of registries: their fetches, their room, and which are removed."""

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import docker
import docker.errors
import pytest

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.registry_http import TransferRate
from quorate_content.store.content_store import ContentStore
from quorate_node.executors.docker.docker_executor import FETCHES_MAX
from quorate_node.executors.docker.engine_connection import digest_name
from quorate_node.executors.docker.image_loader import ImageCache, ImageLoader
from quorate_node.executors.job_runner import JobRunner
from quorate_node.market.content_sources import JobSources
from quorate_protocol import values
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import MIB, new_lease, python_task
from support.executors.image_archives import entry, image_entries, tar
from support.executors.image_fetching import (
    RULES,
    executing,
    image_ids,
    remove_images,
    send_slowly,
    small_archive,
    until_closed,
    until_fetching,
)
from support.executors.registries import served, serving
from support.markets.provider_world import make_spec

pytestmark = pytest.mark.docker


SECONDS = 1.5  # long enough to differ clearly from zero


async def test_a_slow_registry_delays_no_other_job_and_ends_at_its_deadline(
    image: Path, tmp_path: Path
) -> None:
    images = [
        served(small_archive(tmp_path, name=str(index)), layer=1 << 30)
        for index in range(FETCHES_MAX + 1)
    ]
    patient = replace(
        RULES, rate=TransferRate(1, 300.0, 300.0)
    )  # so that only the deadline ends them
    async with executing(tmp_path, patient) as executor, contextlib.AsyncExitStack() as stack:
        names = [await stack.enter_async_context(serving(image, send_slowly)) for image in images]
        leases = [new_lease() for _ in names]
        fetches = [
            asyncio.create_task(executor.fetch_image(lease, name, 500.0))
            for lease, (name, _) in zip(leases, names, strict=True)
        ]
        await until_fetching([asked for _, asked in names], FETCHES_MAX)
        task = python_task(image, "print('beside')")
        async with asyncio.timeout(60):
            await executor.start(task)
            assert (await executor.wait(task.lease_id)).status == 0
        assert not any(fetch.done() for fetch in fetches), (
            "a local job runs while the registries send slowly"
        )
        for lease in leases:
            await executor.remove(lease)
        await asyncio.gather(*fetches, return_exceptions=True)
        begun = time.monotonic()
        again = (executor.fetch_image(new_lease(), name, SECONDS) for name, _ in names)
        ends = await asyncio.gather(*again, return_exceptions=True)
        assert all(isinstance(end, Unavailable) for end in ends), ends
        assert SECONDS - 0.5 <= time.monotonic() - begun <= SECONDS + 30.0
        for _, asked in names:
            await until_closed(asked)


@pytest.mark.parametrize("way", ["rate", "stop", "remove", "close"])
async def test_a_slow_rate_a_stop_or_a_removal_ends_a_fetch_before_its_deadline(
    tmp_path: Path, way: str
) -> None:
    rules = (
        replace(RULES, rate=TransferRate(100_000, grace_seconds=1.0)) if way == "rate" else RULES
    )
    async with (
        executing(tmp_path, rules) as executor,
        serving(served(small_archive(tmp_path), layer=1 << 30), send_slowly) as (name, asked),
    ):
        lease = new_lease()
        fetch = asyncio.create_task(executor.fetch_image(lease, name, 500.0))
        await until_fetching([asked], 1)
        match way:
            case "stop":
                await executor.stop(lease)
            case "remove":
                await executor.remove(lease)
            case "close":
                executor._fetches.close()
        async with asyncio.timeout(10):
            with pytest.raises(
                Unavailable, match="bytes a second" if way == "rate" else "has ended"
            ):
                await fetch
        await until_closed(asked)


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
        pieces = [piece async for piece in executor.logs(task.lease_id, follow=True)]
        assert [piece.text for piece in pieces] == [b"1\n"]
        assert len(asked) == len(paths), "the engine asks no registry"
    engine.remove_image(offered.config)


async def test_the_fetch_of_a_lease_has_the_leases_deadline(tmp_path: Path) -> None:
    """The daemon calls this before it starts a job: inputs and image, by commitBy."""
    store = ContentStore(tmp_path / "store", 1 << 20)
    try:
        async with (
            executing(tmp_path) as executor,
            serving(served(small_archive(tmp_path), layer=1 << 30), send_slowly) as (name, asked),
        ):
            bench, begun = (
                JobRunner(executor, store, tmp_path / "home", SystemClock(), {}),
                time.monotonic(),
            )
            spec = values.replace(make_spec(), image=name)
            with pytest.raises(Unavailable, match="deadline"):
                await bench.fetch(new_lease(), spec, JobSources(), SECONDS)
            assert time.monotonic() - begun < 20.0
            await until_closed(asked)
    finally:
        await store.close()


async def test_an_image_larger_than_the_room_is_refused_before_it_is_fetched(
    tmp_path: Path,
) -> None:
    image = served(small_archive(tmp_path, 64 << 10))
    async with (
        executing(tmp_path, replace(RULES, bytes_max=32 << 10)) as executor,
        serving(image) as (name, asked),
    ):
        with pytest.raises(Refused, match="room for 32768") as refusal:
            await executor.fetch_image(new_lease(), name, 60.0)
        assert refusal.value.code is Code.OVERSIZE
        assert not [request for request in asked if "/blobs/" in request.path]


async def test_an_image_that_unpacks_beyond_the_room_is_refused(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    """Thirty MiB of zeros in thirty KiB: the compressed size says nothing."""
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


async def test_the_longest_unused_images_are_removed_but_never_the_owners(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    images, theirs = (
        [served(small_archive(tmp_path, 3 * MIB, str(index))) for index in range(4)],
        small_archive(tmp_path, 3 * MIB, "theirs"),
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
        ):  # The first is used again, so the second is the longest unused.
            await executor.fetch_image(new_lease(), name, 60.0)
        held = image_ids(engine)
        assert [image.config in held for image in images] == [True, False, True, True]
        assert known.reference in held, "the engine had it before the job came"


async def test_images_in_use_are_kept(tmp_path: Path, engine: docker.APIClient) -> None:
    """One is in a container, the other got a name: nothing can go, and the third waits."""
    images = [served(small_archive(tmp_path, 3 * MIB, str(index))) for index in range(3)]
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


async def test_images_of_jobs_are_labelled_and_removed_at_the_next_start(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    """The records of one were lost, the other was long unused. Others' images stay."""
    lost, old, fresh, theirs = (
        served(small_archive(tmp_path, 1000, name)) for name in ("lost", "old", "fresh", "theirs")
    )
    folder = tmp_path / "leases-images"
    async with contextlib.AsyncExitStack() as stack:
        executor = await stack.enter_async_context(executing(tmp_path))
        stack.callback(remove_images, engine, [item.config for item in (lost, old, fresh, theirs)])
        for image in (lost, old, fresh):
            name, _ = await stack.enter_async_context(serving(image))
            await executor.fetch_image(new_lease(), name, 60.0)
        [tag] = engine.inspect_image(old.config)["RepoTags"]
        assert tag.startswith("quorate-job:"), "people see whose it is"
        other = ImageLoader(engine, ImageCache(tmp_path / "other"), "another-provider")
        other.load(tmp_path / "theirs.tar", read_archive(tmp_path / "theirs.tar"))
        other.load(tmp_path / "fresh.tar", read_archive(tmp_path / "fresh.tar"))
        (folder / f"{lost.config.removeprefix('sha256:')}.json").unlink()
        os.utime(folder / f"{old.config.removeprefix('sha256:')}.json", (0, 0))
        await executor.check()
        held = image_ids(engine)
        kept = [image.config in held for image in (lost, old, fresh, theirs)]
        assert kept == [False, False, True, True]
        os.utime(folder / f"{fresh.config.removeprefix('sha256:')}.json", (0, 0))
        await executor.check()
        assert fresh.config in image_ids(engine), "the other provider's jobs still use it"


async def test_a_name_for_the_self_test_is_pinned_by_its_digest(
    tmp_path: Path, engine: docker.APIClient
) -> None:
    pinned = "registry.example/x@sha256:" + "ab" * 32
    assert digest_name(pinned) == pinned
    archive = small_archive(tmp_path)
    with archive.open("rb") as file:
        list(engine.load_image(file, quiet=True))
    engine.tag(read_archive(archive).config_digest, "quorate-test-only-here", "1")
    try:
        with pytest.raises(Refused, match="quorate-test-only-here:1 is of this machine only"):
            digest_name("quorate-test-only-here:1")
    finally:
        engine.remove_image("quorate-test-only-here:1")
    with pytest.raises(Unavailable, match="the container engine has no image 127.0.0.1:9/none"):
        digest_name("127.0.0.1:9/none")
