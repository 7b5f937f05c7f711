"""Programs that do not end, or leave processes and files behind, in every sandbox."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from quorate_protocol.messages.ports import Executor, Sandbox, TaskState
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import EXIT_TIMEOUT, Seconds
from support.executors.executor_cases import python_task

NAMED = {"newline": "open(b'/outputs/a\\nb', 'w')", "latin": "open(b'/outputs/\\xff', 'w')"}
KEPT = """
import os
open('/outputs/x', 'w').write('x')
os.link('/outputs/x', '/outputs/y')
os.chmod('/outputs/x', 0o6777)
os.mkdir('/outputs/d'); open('/outputs/d/z', 'w'); os.chmod('/outputs/d', 0)
try: os.link('/inputs/a', '/outputs/a')
except OSError: pass
os.chmod('/outputs', 0)
"""


async def test_strange_names_are_refused_and_modes_are_not_kept(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("given")
    for name, code in NAMED.items():
        task = python_task(image, code)
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        with pytest.raises(Refused) as refusal:
            await executor.collect(task.lease_id, tmp_path / name)
        assert refusal.value.code is Code.MALFORMED
    task = python_task(image, KEPT, mounts={"/inputs/a": tmp_path / "input"})
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    await executor.collect(task.lease_id, tmp_path / "kept")
    modes = {
        str(path.relative_to(tmp_path / "kept")): path.stat().st_mode & 0o7000
        for path in (tmp_path / "kept").rglob("*")
    }
    assert modes == {"x": 0, "y": 0, "d": 0, "d/z": 0}


async def test_a_program_that_ignores_sigterm_is_killed(executor: Executor, image: Path) -> None:
    code = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if not os.fork():
        os.setsid()
        if not os.fork():
            while True: time.sleep(1)
print('up', flush=True)
while True:
    try: time.sleep(1)
    except BaseException: pass
"""
    task = python_task(image, code)
    async with asyncio.timeout(60):
        await executor.start(task)
        async for chunk in executor.logs(task.lease_id, follow=True):
            if b"up" in chunk:
                break
        await executor.stop(task.lease_id)
        assert (await executor.wait(task.lease_id)).status == 256 + 9
        assert await executor.state(task.lease_id) is TaskState.EXITED


async def test_a_stopped_program_ends_at_its_time_limit(executor: Executor, image: Path) -> None:
    if executor.sandbox is Sandbox.BWRAP:
        code = "import os, signal\nfor _ in range(2):\n  os.fork()\nos.kill(0, signal.SIGSTOP)\n"
    else:
        code = "import time\ntime.sleep(50)"
    task = python_task(image, code, max_duration=Seconds(2))
    async with asyncio.timeout(40):
        await executor.start(task)
        if executor.sandbox is not Sandbox.BWRAP:
            await asyncio.to_thread(
                subprocess.run,
                ["docker", "pause", f"quorate-{task.lease_id}"],
                check=True,
                capture_output=True,
            )
            assert await executor.state(task.lease_id) is TaskState.RUNNING
        assert (await executor.wait(task.lease_id)).status == EXIT_TIMEOUT
    await executor.remove(task.lease_id)
