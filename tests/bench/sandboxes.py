"""Milliseconds from start to exit of `python3 -c pass` in each sandbox of this machine.

The sandboxes run one after the other; prints one JSON line.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from quorate.images import build_python_image
from support.executors.executor_cases import make_executor, python_task
from support.requirements import missing

KINDS = {"process": None, "bwrap": "bwrap", "docker-runc": "docker", "docker-runsc": "runsc"}


async def measure(kind: str, image: Path, folder: Path, count: int) -> dict[str, float]:
    """Median and worst of `count` tasks, and the program's own time as the executor reports it."""
    executor = make_executor(kind, folder)
    await executor.check()
    starts, totals, walls = [], [], []
    for index in range(count + 1):
        task = python_task(image, "pass")
        began = time.monotonic()
        await executor.start(task)
        started = time.monotonic()
        ended = await executor.wait(task.lease_id)
        total = time.monotonic() - began
        assert ended.status == 0, ended
        await executor.remove(task.lease_id)
        if index:  # the first one loads or unpacks the image
            starts.append(started - began)
            totals.append(total)
            walls.append(ended.usage.wall_ms / 1000)
    await executor.close()
    figures = {
        "start": statistics.median(starts),
        "p50": statistics.median(totals),
        "max": max(totals),
        "wall": statistics.median(walls),
    }
    return {name: round(value * 1000, 1) for name, value in figures.items()}


async def main(count: int) -> None:
    """Measures all sandboxes of this machine."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as text:
        image = build_python_image(Path(text) / "python.tar", ()).path
        for kind, needed in KINDS.items():
            reason = missing(needed) if needed else None
            (Path(text) / kind).mkdir()
            found[kind] = reason or await measure(kind, image, Path(text) / kind, count)
    print(json.dumps({"sandbox_ms": found, "tasks": count}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    asyncio.run(main(parser.parse_known_args()[0].count))
