"""An engine that stops under running containers: what it ends is nobody's result (I4, I5), and
an engine that only hangs ends nothing.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker.errors
import pytest
import requests

from quorate_node.executors.docker.boot_id import engine_boot_id
from quorate_node.executors.docker.docker_executor import PREFIX, DockerExecutor
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.hardened_profile import LABEL_ENGINE_BOOT
from quorate_node.executors.docker.lease_dirs import DockerOutputs
from quorate_protocol.ports import EngineRefuses, Sandbox, Task, TaskState
from quorate_protocol.refusals import Unavailable
from quorate_runtime.clock import SystemClock, VirtualClock
from support.executors.executor_cases import python_task
from support.executors.own_engine import OwnEngine
from support.requirements import require

pytestmark = pytest.mark.docker
OWNER = "test-own-engine"
SLOW = (
    "import os, time; open('/outputs/half', 'w').write('1'); time.sleep({}); "
    "open('/outputs/whole', 'w').write('2')"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    require("own-engine")
    made = OwnEngine(tmp_path_factory.mktemp("engine"))
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
async def executor(engine: OwnEngine, tmp_path: Path) -> AsyncIterator[DockerExecutor]:
    made = DockerExecutor(
        tmp_path / "leases", OWNER, SystemClock(), engine.url, sandbox=Sandbox.DOCKER_RUNC
    )
    yield made
    for lease in await made.leases():
        await made.remove(lease)
    await made.close()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.rule("I4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_ended_with_the_engine_is_no_result_and_runs_anew(
    engine: OwnEngine, executor: DockerExecutor, image: Path, tmp_path: Path, number: signal.Signals
) -> None:
    task = python_task(image, SLOW.format(6))
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    await asyncio.sleep(1)
    await asyncio.to_thread(engine.stop, number)
    await asyncio.to_thread(engine.start)
    with pytest.raises(Unavailable):
        await waiting
    api = connect(engine.url)
    try:
        record = api.inspect_container(PREFIX + task.lease_id)
        # 143 after a stop, 137 or even 0 after a kill: as if the program had made it so.
        assert (
            record["State"]["Status"] == "exited"
            and not record["State"]["OOMKilled"]
            and not record["State"]["Error"]
        )
        assert record["Config"]["Labels"][LABEL_ENGINE_BOOT] != engine_boot_id(api)
    finally:
        api.close()
    assert await executor.state(task.lease_id) is TaskState.ABSENT
    again = python_task(image, SLOW.format(0), lease_id=task.lease_id)
    await executor.start(again)
    assert (await executor.wait(task.lease_id)).status == 0
    await executor.collect(task.lease_id, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["half", "whole"]


async def test_a_program_that_takes_the_engine_s_sigterm_for_its_own_end_gives_no_result(
    engine: OwnEngine, executor: DockerExecutor, image: Path
) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        "time.sleep(60)"
    )
    task = python_task(image, code)
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    await asyncio.sleep(2)
    await asyncio.to_thread(engine.stop, signal.SIGTERM)
    with pytest.raises(Unavailable):
        await waiting
    await asyncio.to_thread(engine.start)
    assert await executor.state(task.lease_id) is TaskState.ABSENT


async def test_an_exit_while_nobody_watched_counts_in_the_same_life(
    executor: DockerExecutor, image: Path
) -> None:
    task = python_task(image, SLOW.format(0))
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    assert await executor.state(task.lease_id) is TaskState.EXITED


async def test_outputs_in_a_volume_are_gone_with_the_engine_and_that_is_said(
    engine: OwnEngine, image: Path, tmp_path: Path
) -> None:
    executor = DockerExecutor(
        tmp_path / "leases",
        OWNER,
        SystemClock(),
        engine.url,
        DockerOutputs.VOLUME,
        Sandbox.DOCKER_RUNC,
    )
    task = python_task(image, SLOW.format(0))
    try:
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        await asyncio.to_thread(engine.stop, signal.SIGKILL)
        await asyncio.to_thread(engine.start)
        assert await executor.state(task.lease_id) is TaskState.ABSENT
        with pytest.raises(Unavailable, match="gone"):
            await executor.collect(task.lease_id, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    finally:
        await executor.remove(task.lease_id)
        assert await executor.leases() == []
        await executor.close()


class Scripted(DockerExecutor):
    """Its engine fails as it is told to."""

    trouble: Exception

    def _start(self, task: Task) -> None:
        raise self.trouble


async def test_an_engine_that_was_away_is_given_its_time_again(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """It said no before a restart that took long, and once more just after: the lease was given
    up in that moment.
    """
    clock, task = VirtualClock(), python_task(Path("image.tar"), "")
    executor = Scripted(tmp_path / "leases", OWNER, clock, engine.url, sandbox=Sandbox.DOCKER_RUNC)
    says_no, is_away = docker.errors.APIError("no"), requests.exceptions.ConnectionError("away")
    try:
        for seconds, executor.trouble in (
            (0, says_no),
            (20, is_away),
            (20, says_no),
            (20, says_no),
        ):
            clock.forward(seconds)
            with pytest.raises(Unavailable):
                await executor.start(task)
        clock.forward(20)
        with pytest.raises(EngineRefuses):
            await executor.start(task)
    finally:
        await executor.close()
