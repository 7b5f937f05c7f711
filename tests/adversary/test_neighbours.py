"""Attacks by a job on the result of the job beside it, in every sandbox."""

import asyncio
import json
from pathlib import Path

import pytest

from quorate_protocol.messages.ports import Executor, Task
from support.executors.executor_cases import MIB, SANDBOXES, ending, make_executor, python_task
from support.executors.neighbours import GREEDY, MODEST

BEFORE = {"docker-runc": 8, "docker-runsc": 0, "bwrap": 7}


async def outputs(executor: Executor, task: Task, folder: Path) -> dict[str, object]:
    """Runs a task to its end and returns the document that it wrote."""
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    await executor.collect(task.lease_id, folder)
    await executor.remove(task.lease_id)
    found: dict[str, object] = json.loads((folder / "found").read_bytes())
    return found


async def first_line(executor: Executor, task: Task) -> bytes:
    """Returns the first line that a running task prints."""
    text = b""
    async for piece in executor.logs(task.lease_id, follow=True):
        text += piece.text
        if b"\n" in text:
            break
    return text


@pytest.mark.rule("11.2")
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_a_neighbour_cannot_change_a_result_by_the_limits_of_a_user(
    kind: str, tmp_path: Path, image: Path, attack
) -> None:  # type: ignore[no-untyped-def]
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        alone = await outputs(executor, python_task(image, MODEST), tmp_path / "alone")
        tries = "2000" if kind == "docker-runsc" else "120000"  # gVisor has no such limit
        greedy = python_task(image, GREEDY, memory_bytes=1024 * MIB, env={"TRIES": tries})
        await executor.start(greedy)
        async with asyncio.timeout(60):
            used = json.loads(await first_line(executor, greedy))
        beside = await outputs(executor, python_task(image, MODEST), tmp_path / "beside")
        await executor.remove(greedy.lease_id)
    assert beside == alone, used
    attack(
        name=f"neighbour uses up inotify, timers, queues, pipes, terminals ({kind})",
        before=f"{BEFORE[kind]} of 9 results of the job beside it changed",
        now=f"{sum(alone[name] != beside[name] for name in alone)} of 9 results changed",
        cost="the price of one run",
    )
