"""What the executor tests share: a clock, tasks, an image built once, and the executors under test."""

import time
import uuid
from asyncio import sleep
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quorate_protocol.ports import Mount, Task
from quorate_protocol.units import Seconds

MIB = 1 << 20


class RealClock:
    """The system's clock, as a provider uses it."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await sleep(seconds)


def new_lease() -> str:
    return uuid.uuid4().hex


def python_task(image: Path | str, code: str, *, mounts: Mapping[str, Path] | None = None, **changes: object) -> Task:
    """A small task that runs Python code."""
    task = Task(
        lease_id=new_lease(), image=image, argv=("python3", "-c", code), env={}, working_dir="/scratch",
        mounts=tuple(Mount(source, target) for target, source in (mounts or {}).items()), cpu_millis=1000, memory_bytes=256 * MIB,
        shm_bytes=16 * MIB, scratch_bytes=32 * MIB, output_bytes=8 * MIB, output_inodes=200, pids=64, max_duration=Seconds(60),
    )  # fmt: skip
    return replace(task, **changes)  # type: ignore[arg-type]
