"""Appends per second of the journal at 1, 16 and 128 callers, each with one effect.

Prints one JSON line. Run: python tests/bench/journal.py [folder on the disk to measure]
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.journal_port import Record
from quorate_runtime.journal.journal import Journal

CALLERS = (1, 16, 128)
SECONDS = 2.0
PAYLOAD = os.urandom(300)


async def measure(folder: Path, callers: int) -> dict[str, float]:
    """Runs for SECONDS; returns appends per second, and median and 99th percentile in
    milliseconds.
    """
    journal = Journal.open(folder)
    before = journal.commits
    took: list[float] = []
    start = time.perf_counter()

    async def caller() -> None:
        while time.perf_counter() - start < SECONDS:
            begun = time.perf_counter()
            number = journal.last_offset + 1
            await journal.append(
                Record(1, UnixSeconds(1), Hash32(bytes(32)), PAYLOAD),
                [(f"key/{number}", PAYLOAD[:100])],
            )
            took.append(time.perf_counter() - begun)

    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - start
    commits = journal.commits - before
    await journal.close()
    took.sort()
    return {
        "callers": callers,
        "appends_per_second": round(len(took) / seconds),
        "commits_per_second": round(commits / seconds),
        "p50_ms": round(1000 * took[len(took) // 2], 3),
        "p99_ms": round(1000 * took[len(took) * 99 // 100], 3),
    }


def main(parent: Path) -> None:
    """Measures each number of callers on a new journal."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        runs = [asyncio.run(measure(Path(folder) / str(callers), callers)) for callers in CALLERS]
    print(json.dumps({"bench": "journal", "synchronous": "FULL", "runs": runs}))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
