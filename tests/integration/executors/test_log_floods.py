"""A job that writes logs without end: its log is bounded on disk and in memory.

The job still ends with its result.
"""

import asyncio
from pathlib import Path

import pytest

from quorate_node.executors.docker import docker_executor
from quorate_node.executors.docker import docker_executor as docker_adapter
from quorate_node.executors.sandbox import lease_run
from quorate_protocol.messages.ports import Executor, Task
from quorate_protocol.units import Seconds
from quorate_protocol.values import replace
from support.executors.executor_cases import BWRAP, MIB, RUNC, python_task
from support.process_memory import resident_bytes

CUT = b"\n[log cut at 1 MiB]\n"
BLAB = """
import os, sys
line = b'y' * 65535 + b'\\n'
for _ in range({pieces}):
    done = 0
    while done < len(line):
        done += os.write(1 + (_ & 1), line[done:])
with open(os.environ['QUORATE_OUTPUTS'] + '/said', 'w') as file:
    file.write(str({pieces} * len(line)))
sys.exit(7)
"""


both = pytest.mark.parametrize("executor", [RUNC, BWRAP], indirect=True)


def bytes_on_disk(folder: Path) -> int:
    """Bytes of logs under a folder, without images."""
    return sum(
        path.stat().st_blocks * 512
        for path in (folder / "leases").rglob("*")
        if path.is_file() and path.name == "log"
    )


def blabbing(image: Path, megabytes: int) -> Task:
    return python_task(image, BLAB.format(pieces=megabytes * 16), max_duration=Seconds(300))


@both
async def test_a_log_of_256_mib_costs_one_mib(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    task = blabbing(image, 256)
    before, most, seen = resident_bytes(), 0, 0
    await executor.start(task)
    waiting = asyncio.create_task(executor.wait(task.lease_id))
    async with asyncio.timeout(240):
        tail = b""
        async for chunk in executor.logs(task.lease_id, follow=True):
            seen, tail = seen + len(chunk), (tail + chunk)[-len(CUT) :]
            most = max(most, resident_bytes())
        while not waiting.done():
            most = max(most, resident_bytes())
            await asyncio.sleep(0.05)
    assert (await waiting).status == 7
    assert tail == CUT and MIB <= seen <= MIB + len(CUT)
    assert bytes_on_disk(tmp_path) <= MIB + (64 << 10)
    assert most - before < 24 * MIB, f"grew by {(most - before) >> 20} MiB"
    await executor.collect(task.lease_id, tmp_path / "collected")
    assert (tmp_path / "collected" / "said").read_text() == str(256 * MIB)


@both
async def test_a_log_that_is_full_stays_full(
    executor: Executor, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon reads the container again several times, and once more after a restart."""
    monkeypatch.setattr(docker_adapter, "_WAIT_SECONDS", 0.05)
    task = replace(blabbing(image, 1_000_000), max_duration=Seconds(4))
    await executor.start(task)
    async with asyncio.timeout(60):
        await executor.wait(task.lease_id)
    text = b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=False)])
    assert text.endswith(CUT) and len(text) == MIB + len(CUT)
    assert docker_executor.LOG_BYTES_MAX == lease_run.LOG_BYTES_MAX == MIB
