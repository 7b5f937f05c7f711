"""Run as a user without any rights: `python unprivileged_bwrap.py ARCHIVE FOLDER`. Prints as JSON what came of each program."""

import asyncio
import json
import sys
from pathlib import Path

from executor_support import MIB, RealClock, python_task
from quorate_node.adapters.bwrap import BwrapExecutor
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Seconds

GROW = "import time\nheld=[]\nwhile True: held.append(bytearray(b'x')*(8<<20)); time.sleep(0.02)"
FORK = "import os,time\nfor _ in range(60):\n  if not os.fork(): time.sleep(30); os._exit(0)\ntime.sleep(30)"
FILL = "import time\nfor i in range(200): open(f'/outputs/{i}','wb').write(bytes(1<<20)); time.sleep(0.05)"
PROGRAMS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("import os; open('/outputs/x','w').write(str(os.getuid()))", {}),
    "memory": (GROW, {"memory_bytes": 128 * MIB}),
    "forks": (FORK, {"pids": 32, "memory_bytes": 4096 * MIB}),
    "outputs": (FILL, {"output_bytes": 8 * MIB}),
    "time": ("while True: pass", {"max_duration": Seconds(1)}),
}


async def main(archive: Path, folder: Path) -> None:
    """One after the other."""
    executor = BwrapExecutor(folder / "leases", folder / "images", RealClock())
    await executor.check()
    found: dict[str, object] = {"limits": executor.limits}
    for name, (code, changes) in PROGRAMS.items():
        task = python_task(archive, code, **changes)
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        try:
            await executor.collect(task.lease_id, folder / name)
            collected = {path.name: path.read_text() for path in (folder / name).iterdir()}
        except Refused as refused:  # what the test looks for
            collected = {"refused": refused.code.value}
        found[name] = {"status": ended.status, "cpu_ms": ended.usage.cpu_ms, "collected": collected}
        await executor.remove(task.lease_id)
    found["left"] = list(await executor.leases())
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
