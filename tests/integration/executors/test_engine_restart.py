"""An engine that stops ends its containers, and that is no result (I4, I5).

An engine that only hangs ends nothing.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker.errors
import pytest
import requests

from quorate_node.executors.base.hardened_profile import LABEL_ENGINE_BOOT
from quorate_node.executors.docker.docker_executor import PREFIX, DockerExecutor, engine_boot_id
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import DockerOutputs
from quorate_protocol.messages.ports import EngineRefuses, Sandbox, Task, TaskState
from quorate_protocol.refusals import Unavailable
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import python_task
from support.executors.own_engine import OwnEngine
from support.requirements import require
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.docker
OWNER = "test-own-engine"
SLOW = (
    "import os, time; open('/outputs/half', 'w').write('1'); print('half', flush=True); "
    "time.sleep({}); "
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


async def first_output(executor: DockerExecutor, task: Task) -> None:
    """Waits until the task's program has written something."""
    async with asyncio.timeout(20):
        async for _ in executor.logs(task.lease_id, follow=True):
            return


@pytest.mark.rule("I4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_container_ended_by_its_engine_gives_no_result_and_runs_again(
    engine: OwnEngine, executor: DockerExecutor, image: Path, tmp_path: Path, number: signal.Signals
) -> None:
    task = python_task(image, SLOW.format(6))
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    await first_output(executor, task)
    await asyncio.to_thread(engine.stop, number)
    await asyncio.to_thread(engine.start)
    with pytest.raises(Unavailable):
        await waiting
    api = connect(engine.url)
    try:
        record = api.inspect_container(PREFIX + task.lease_id)
        # 143 after a stop, 137 or even 0 after a kill: as if the program had chosen it.
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


async def test_a_program_that_exits_at_the_engines_sigterm_gives_no_result(
    engine: OwnEngine, executor: DockerExecutor, image: Path
) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    task = python_task(image, code)
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    await first_output(executor, task)
    await asyncio.to_thread(engine.stop, signal.SIGTERM)
    with pytest.raises(Unavailable):
        await waiting
    await asyncio.to_thread(engine.start)
    assert await executor.state(task.lease_id) is TaskState.ABSENT


async def test_an_exit_while_the_daemon_was_down_counts_if_the_engine_kept_running(
    executor: DockerExecutor, image: Path
) -> None:
    task = python_task(image, SLOW.format(0))
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    assert await executor.state(task.lease_id) is TaskState.EXITED


async def test_outputs_in_a_volume_are_lost_with_the_engine_and_reported(
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
        with pytest.raises(Unavailable, match="lost"):
            await executor.collect(task.lease_id, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    finally:
        await executor.remove(task.lease_id)
        assert await executor.leases() == []
        await executor.close()


class Scripted(DockerExecutor):
    """An engine that fails as the test wants."""

    trouble: Exception

    def _start(self, task: Task) -> None:
        raise self.trouble


async def test_an_engine_that_was_away_gets_its_whole_time_again(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """The engine refused before a long restart, and once more just after it: the lease must not be
    given up.
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
