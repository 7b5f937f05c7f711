"""How long a warm pool takes from a call to the first command's result, and to a new machine.

Machines are processes here behind an SSH server: it measures the SDK and SSH, not a network.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from quorate.sandboxes.machines import template
from quorate.sandboxes.pool import Sandboxes
from quorate.sandboxes.sandbox import one_sandbox
from support.rentals.local_sandboxes import IMAGE, LocalMachines

LOAD_SECONDS = 0.5  # of each machine


async def measure(calls: int, warm: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        machines = LocalMachines(Path(folder), LOAD_SECONDS)
        asked = template(IMAGE, max_price="3.6")
        cold, first = [], []
        for _ in range(max(1, calls // 4)):
            began = time.perf_counter()
            async with one_sandbox(machines, asked) as box:
                await box.exec("true")
                cold.append(time.perf_counter() - began)
        async with Sandboxes(machines, asked, warm) as pool:
            for _ in range(calls):
                while pool.ready < warm:
                    await asyncio.sleep(0.01)
                began = time.perf_counter()
                async with pool.sandbox() as box:
                    await box.exec("true")
                    first.append(time.perf_counter() - began)
    return {
        "calls": calls,
        "warm": warm,
        "sandbox_start_p50_ms": round(statistics.median(first) * 1000, 1),
        "sandbox_start_max_ms": round(max(first) * 1000, 1),
        "without_pool_p50_ms": round(statistics.median(cold) * 1000, 1),
    }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--warm", type=int, default=2)
    given = parser.parse_args(words)
    print(json.dumps(asyncio.run(measure(given.calls, given.warm))))


if __name__ == "__main__":
    main(sys.argv[1:])
