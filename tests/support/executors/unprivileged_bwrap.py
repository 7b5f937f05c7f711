"""Runs programs in bubblewrap as a user without rights: `unprivileged_bwrap.py ARCHIVE FOLDER`.

Prints the outcome of each program as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Seconds
from quorate_runtime.clock import SystemClock
from support.executors.executor_cases import MIB, python_task

GROW = "import time\nheld=[]\nwhile True: held.append(bytearray(b'x')*(8<<20)); time.sleep(0.02)"
FORK = """import os, time
made = 0
try:
    while made < 400:
        if not os.fork(): time.sleep(30); os._exit(0)
        made += 1
except BlockingIOError: pass
open('/outputs/made', 'w').write(str(made))
"""
FILL = (
    "import time\nfor i in range(200): open(f'/outputs/{i}','wb').write(bytes(1<<20)); "
    "time.sleep(0.05)"
)
CLOSED = (
    "import "
    "os\nos.mkdir('/outputs/d')\nopen('/outputs/d/y','w').write('y')\nos.chmod('/outputs/d',0)\n"
)
HIDE = (
    CLOSED
    + "import time\nos.chmod('/outputs/d',0o300)\n"
    + FILL.replace("/outputs/", "/outputs/d/")
)
HOLD = """import os, time
held = []
for _ in range(200):
    held.append(open('/outputs/x', 'wb', buffering=0))
    held[-1].write(bytes(1 << 20)); os.unlink('/outputs/x'); time.sleep(0.03)
"""
SCRATCH = FILL.replace("/outputs/", "/scratch/")
MAPPED = """import mmap, os, time
handle = os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)
for _ in range(40): os.write(handle, bytes(1 << 20))
held = mmap.mmap(handle, 40 << 20)
assert not any(held[at] for at in range(0, 40 << 20, 4096))
time.sleep(0.5)
"""
NAMELESS = """import os, time
for place in range(200): os.write(os.memfd_create(str(place)), bytes(1 << 20)); time.sleep(0.02)
"""
DETACHED = """import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(0, 1 << 20, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)]
open('/outputs/made', 'w').write(str(made))
"""
FAVOURED = """path = '/proc/self/oom_score_adj'
try: open(path, 'w').write('0')
except OSError: pass
open('/outputs/score', 'w').write(open(path).read().strip())
"""
PROGRAMS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": (CLOSED + "open('/outputs/x','w').write(str(os.getuid()))", {}),
    "memory": (GROW, {"memory_bytes": 128 * MIB}),
    "forks": (FORK, {"pids": 32, "memory_bytes": 4096 * MIB}),
    "outputs": (FILL, {"output_bytes": 8 * MIB}),
    "hidden": (HIDE, {"output_bytes": 8 * MIB}),
    "unlinked": (HOLD, {"output_bytes": 8 * MIB}),
    "scratch": (SCRATCH, {"memory_bytes": 48 * MIB, "scratch_bytes": 256 * MIB}),
    "mapped": (MAPPED, {"memory_bytes": 72 * MIB, "shm_bytes": 48 * MIB}),
    "nameless": (NAMELESS, {"memory_bytes": 64 * MIB}),
    "detached": (DETACHED, {}),
    "favoured": (FAVOURED, {}),
    "time": ("while True: pass", {"max_duration": Seconds(2)}),
}


async def main(archive: Path, folder: Path) -> None:
    """Runs the programs one after the other."""
    executor = BwrapExecutor(folder / "leases", folder / "images", SystemClock())
    await executor.check()
    found: dict[str, object] = {"limits": executor.limits}
    for name, (code, changes) in PROGRAMS.items():
        task = python_task(archive, code, **changes)
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        try:
            await executor.collect(task.lease_id, folder / name)
            collected = {
                path.name: path.read_text() for path in (folder / name).rglob("*") if path.is_file()
            }
        except Refused as refused:  # the test reads this line
            collected = {"refused": refused.code.value}
        found[name] = {"status": ended.status, "cpu_ms": ended.usage.cpu_ms, "collected": collected}
        await executor.remove(task.lease_id)
    found["left"] = list(await executor.leases())
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
