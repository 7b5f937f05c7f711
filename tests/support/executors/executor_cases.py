"""Shared by the executor tests: a clock, tasks, an image that is built once, and the executors."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from quorate_node.executors.docker import lease_dirs
from quorate_node.executors.docker.docker_executor import DockerExecutor
from quorate_node.executors.docker.image_loader import ImagePolicy
from quorate_node.executors.docker.lease_dirs import reap
from quorate_node.executors.docker.lease_keeper import end_keeper
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.executors.process_executor import ProcessExecutor
from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor
from quorate_node.executors.sandbox.supervised_leases import reap_processes
from quorate_protocol.messages.ports import Executor, Mount, Sandbox, Task
from quorate_protocol.units import Seconds
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock

MIB = 1 << 20
Made = TypeVar("Made", bound=Executor)


def new_lease() -> str:
    return uuid.uuid4().hex


def python_task(
    image: Path | str, code: str, *, mounts: Mapping[str, Path] | None = None, **changes: object
) -> Task:
    """A small task that runs Python code."""
    task = Task(
        lease_id=new_lease(),
        image=image,
        argv=("python3", "-c", code),
        env={},
        working_dir="/scratch",
        mounts=tuple(Mount(source, target) for target, source in (mounts or {}).items()),
        cpu_millis=1000,
        memory_bytes=256 * MIB,
        shm_bytes=16 * MIB,
        scratch_bytes=32 * MIB,
        output_bytes=8 * MIB,
        output_inodes=200,
        pids=64,
        max_duration=Seconds(60),
    )
    return replace(task, **changes)  # type: ignore[arg-type]


RUNC = pytest.param("docker-runc", marks=pytest.mark.docker)
VOLUME = pytest.param(
    "docker-volume", marks=pytest.mark.docker
)  # runc, with outputs written as by a provider without root rights
RUNSC = pytest.param("docker-runsc", marks=pytest.mark.runsc)
BWRAP = pytest.param("bwrap", marks=pytest.mark.bwrap)
SANDBOXES = (RUNC, RUNSC, BWRAP)


def make_executor(kind: str, folder: Path) -> Executor:
    """Returns an executor over `folder`. A second call gives what a restarted daemon would have."""
    home = folder / "leases"
    match kind:
        case "noop":
            return NoopExecutor(home, SystemClock(), duration_ms=300)
        case "process":
            return ProcessExecutor(home, SystemClock())
        case "bwrap":
            return BwrapExecutor(home, folder / "images", SystemClock())
        case "docker-volume":
            kept = lease_dirs.DockerOutputs.VOLUME
            return DockerExecutor(
                home, owner(folder), SystemClock(), outputs=kept, sandbox=Sandbox.DOCKER_RUNC
            )
        case _:
            policy = ImagePolicy(private=None)  # the tests' registries are on loopback
            return DockerExecutor(
                home, owner(folder), SystemClock(), sandbox=Sandbox(kind), policy=policy
            )


@asynccontextmanager
async def ending(executor: Made, kind: str, folder: Path) -> AsyncIterator[Made]:
    """Yields a checked executor over `folder`.

    At the end it removes all leases and asserts that nothing is left.
    """
    try:
        await executor.check()
        yield executor
    finally:
        for lease in await executor.leases():
            await executor.remove(lease)
        await executor.close()
        assert await asyncio.to_thread(what_is_left, kind, folder) == 0


async def said(executor: Executor, task: Task, seconds: float = 60.0) -> bytes:
    """Returns the output of a task's program. Fails if the program does not end in time."""
    async with asyncio.timeout(seconds):
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        text = b"".join([piece.text async for piece in executor.logs(task.lease_id, follow=True)])
    assert ended.status == 0, text
    return text


def owner(folder: Path) -> str:
    """Returns the owner label of the executors over `folder`."""
    return "test-" + folder.name


def what_is_left(kind: str, folder: Path) -> int:
    """Cleans up after executors over `folder` that removed all their leases.

    Returns how many containers or leases still existed.
    """
    if kind.startswith("docker"):
        end_keeper(folder / "leases")  # it would remove a later test's container of that name
        return reap(owner(folder), folder / "leases")
    return reap_processes(folder / "leases")
