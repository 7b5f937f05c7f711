"""Features of the Docker executor: forms of outputs, loader variables, its own images, cleanup."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import DockerOutputs, choose_outputs, reap
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from support.executors.attack_programs import check_filled, filling_task, results
from support.executors.executor_cases import ending, owner, python_task
from support.executors.image_archives import add_layer

pytestmark = pytest.mark.docker


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[DockerExecutor]:
    made = DockerExecutor(
        tmp_path / "leases", owner(tmp_path), SystemClock(), sandbox=Sandbox.DOCKER_RUNC
    )
    async with ending(made, "docker-runc", tmp_path):
        yield made


async def test_space_in_a_volume_is_limited_everywhere(image: Path, tmp_path: Path) -> None:
    """Outputs on a loop device are tried with every other sandbox (`test_executor_sandboxes`)."""
    executor = DockerExecutor(
        tmp_path / "leases",
        "space-" + tmp_path.name,
        SystemClock(),
        outputs=DockerOutputs.VOLUME,
        sandbox=Sandbox.DOCKER_RUNC,
    )
    await executor.check()
    task = filling_task(image)
    try:
        check_filled(await results(executor, task))
    finally:
        await executor.remove(task.lease_id)
        await executor.close()


async def test_loader_variables_never_reach_the_engine(
    executor: DockerExecutor, image: Path
) -> None:
    """The test's image has no env to restore them with: such a task is refused and leaves
    nothing.
    """
    task = python_task(image, "", env={"LD_PRELOAD": "/inputs/evil.so"})
    with pytest.raises(Refused) as refusal:
        await executor.start(task)
    assert refusal.value.code is Code.UNSUPPORTED
    assert "LD_PRELOAD" in refusal.value.detail
    assert await executor.leases() == []


async def test_loader_variables_of_an_image_are_restored_inside(
    executor: DockerExecutor, image: Path, tmp_path: Path
) -> None:
    """The engine and its hooks never see LD_* of an image; the program does, if the image has
    env.
    """
    archive = tmp_path / "with-env.tar"
    add_layer(
        image,
        archive,
        {"usr/bin/env": Path("/usr/bin/env")},
        ["LD_LIBRARY_PATH=/opt/cuda", "NVIDIA_VISIBLE_DEVICES=all"],
    )
    task = python_task(archive, "import os, json; print(json.dumps(dict(os.environ)))")
    seen = await results(executor, task)
    assert seen["LD_LIBRARY_PATH"] == "/opt/cuda"
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "void"
    api = connect()
    try:
        env = api.inspect_container(f"quorate-{task.lease_id}")["Config"]["Env"]
    finally:
        api.close()
    assert not [item for item in env if item.startswith("LD_LIBRARY_PATH=")]
    assert "NVIDIA_VISIBLE_DEVICES=all" not in env


async def test_image_that_does_not_exist(
    executor: DockerExecutor, image: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(image.read_bytes()[:100_000])
    for archive, code in ((tmp_path / "none.tar", Code.UNKNOWN), (broken, Code.MALFORMED)):
        with pytest.raises(Refused) as refusal:
            await executor.start(python_task(archive, ""))
        assert refusal.value.code is code
    with pytest.raises(Refused) as refusal:
        await executor.start(python_task("docker.io/library/python:3.12", ""))
    assert "digest" in refusal.value.detail


async def test_reaper_removes_what_a_killed_daemon_left(image: Path, tmp_path: Path) -> None:
    home, label = tmp_path / "leases", "reaped-" + tmp_path.name
    for kind in (choose_outputs(), DockerOutputs.VOLUME):
        executor = DockerExecutor(
            home, label, SystemClock(), outputs=kind, sandbox=Sandbox.DOCKER_RUNC
        )
        task = python_task(image, "import time; time.sleep(100)", mounts={"/inputs/a": image})
        await executor.check()
        await executor.start(replace(task))
        await executor.close()
    assert await asyncio.to_thread(reap, label, home) == 3
    assert list(home.iterdir()) == []
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    assert await asyncio.to_thread(reap, label, home) == 0
