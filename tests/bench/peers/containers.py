"""Time from start to exit of `python3 -c pass`: a process, `docker run`, and a provider's lease."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import drive

from quorate_protocol.messages.ports import Executor
from support.executors.executor_cases import make_executor, python_task

CODE = "pass"


async def _measure(once: Callable[[], Awaitable[None]], calm: int) -> dict[str, float]:
    """Runs one at a time, then one per core."""
    await once()  # loads what is loaded once
    took = []
    for _ in range(calm):
        begun = time.perf_counter()
        await once()
        took.append(time.perf_counter() - begun)
    begun, left = time.perf_counter(), [None] * calm

    async def one_after_another() -> None:
        while left:
            left.pop()
            await once()

    await asyncio.gather(*(one_after_another() for _ in range(os.cpu_count() or 1)))
    return drive.figures(calm / (time.perf_counter() - begun), took)


def plain_process(calm: int) -> dict[str, float]:
    """The time of the interpreter itself."""
    return asyncio.run(_measure(lambda: _command(sys.executable, "-c", CODE), calm))


def docker_run(image: Path, calm: int) -> dict[str, float]:
    """`docker run` without a network, so that both set up the same. Needs the `docker` command."""
    loaded = subprocess.run(
        ["docker", "load", "--quiet", "-i", str(image)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    name = loaded.stdout.strip().rpartition(" ")[2]
    words = ("docker", "run", "--rm", "--network", "none", name, "python3", "-c", CODE)
    return asyncio.run(_measure(lambda: _command(*words), calm))


async def _command(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    status = await process.wait()
    assert status == 0, (words, status)


def hardened(image: Path, folder: Path, kind: str, calm: int) -> dict[str, float]:
    """A lease of an executor: folders, limits, container, log, exit, and everything removed
    again.
    """
    return asyncio.run(_hardened(make_executor(kind, folder), image, calm))


async def _hardened(executor: Executor, image: Path, calm: int) -> dict[str, float]:
    await executor.check()

    async def once() -> None:
        task = python_task(image, CODE)
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        assert ended.status == 0, ended
        await executor.remove(task.lease_id)

    try:
        return await _measure(once, calm)
    finally:
        await executor.close()
