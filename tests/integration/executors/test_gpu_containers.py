"""A real engine gives a container exactly the GPUs of its lease, one container at a time.

A stand-in for NVIDIA's runtime hook records what the engine asks it for.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Unavailable
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import python_task
from support.executors.own_engine import OwnEngine
from support.gpu.recording_hook import RecordingHook
from support.requirements import require

pytestmark = pytest.mark.docker
FIRST, SECOND = (
    "GPU-0b9a8561-0000-4000-8000-000000000001",
    "MIG-32f6ce1d-0000-4000-8000-000000000002",
)
ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MIG_CONFIG_DEVICES": "all"}
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> RecordingHook:
    return RecordingHook(tmp_path_factory.mktemp("hook"))


@pytest.fixture(scope="module")
def own(hook: RecordingHook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    require("own-engine")
    made = OwnEngine(tmp_path_factory.mktemp("engine"), hook.folder)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
async def executor(
    own: OwnEngine, hook: RecordingHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DockerExecutor]:
    monkeypatch.setenv("PATH", str(hook.folder), prepend=":")
    runc, clock = Sandbox.DOCKER_RUNC, SystemClock()
    made = DockerExecutor(tmp_path / "leases", "test-gpus", clock, own.url, sandbox=runc)
    await made.check()
    hook.asked()
    yield made
    for lease in await made.leases():
        await made.remove(lease)
    await made.close()


@pytest.mark.rule("4.34")
async def test_the_engine_is_asked_for_exactly_the_gpus_of_the_lease(
    executor: DockerExecutor, hook: RecordingHook, image: Path
) -> None:
    assert executor.gpu_problem() == "", "the hook is found where the engine finds it"
    code = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
    task = python_task(image, code, env=ENV, gpus=(FIRST, SECOND))
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    [asked] = hook.asked()
    assert asked.arguments == ("prestart",)
    assert asked.variables["NVIDIA_VISIBLE_DEVICES"] == f"{FIRST},{SECOND}", "not all"
    assert asked.variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert set(asked.variables) == {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    said = b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=True)])
    assert said.decode().strip() == f"{FIRST},{SECOND}"


async def test_a_job_without_gpus_reaches_no_hook_and_sees_none(
    executor: DockerExecutor, hook: RecordingHook, image: Path
) -> None:
    code = "import os, sys; sys.exit(os.environ['NVIDIA_VISIBLE_DEVICES'] != 'void')"
    task = python_task(image, code, env=ENV)
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0 and not hook.asked()


@pytest.mark.rule("I2", "4.34")
async def test_a_gpu_is_used_by_one_container_at_a_time(
    executor: DockerExecutor, hook: RecordingHook, image: Path
) -> None:
    """A lease that was given up may still end its container when the next one begins."""
    first, other = (python_task(image, SLEEP, gpus=(uuid,)) for uuid in (FIRST, SECOND))
    both = python_task(image, "pass", gpus=(FIRST, SECOND))
    for task in (first, other):
        await executor.start(task)
    await executor.start(first)  # a repeated call is no second use
    with pytest.raises(Unavailable, match="still used by container"):
        await executor.start(both)
    await executor.stop(first.lease_id)
    with pytest.raises(Unavailable, match=SECOND):
        await executor.start(both)
    await executor.stop(other.lease_id)
    await executor.start(both)
    assert (await executor.wait(both.lease_id)).status == 0
    assert [item.variables["NVIDIA_VISIBLE_DEVICES"] for item in hook.asked()] == [
        FIRST,
        SECOND,
        f"{FIRST},{SECOND}",
    ]
