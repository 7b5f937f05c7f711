"""Programs that attack the sandbox in which they run, and report the outcome as JSON."""

import json
from pathlib import Path

from quorate_protocol.messages.ports import Executor, Task
from support.executors.executor_cases import MIB, python_task, said

ATTEMPT = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(work):
    try:
        work()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
results = {}
"""
TELL = "\nprint(json.dumps(results))"


async def results(executor: Executor, task: Task) -> dict[str, object]:
    """Runs an attack program and returns its report."""
    found: dict[str, object] = json.loads((await said(executor, task)).splitlines()[-1])
    return found


async def attack(
    executor: Executor, image: Path, code: str, **changes: object
) -> dict[str, object]:
    return await results(executor, python_task(image, ATTEMPT + code + TELL, **changes))


FILL = """
def fill(path):
    written = 0
    with open(path, "wb", buffering=0) as file:
        try:
            while written < 200 << 20:
                written += file.write(bytes(1 << 20))
        except OSError as error:
            results[os.path.dirname(path) + " error"] = errno.errorcode[error.errno]
    os.unlink(path)
    return written >> 20
for folder in ("/outputs", "/scratch", "/dev/shm"):
    results[folder] = fill(folder + "/x")
def touch():
    for number in range(10000):
        results["files"] = number
        os.close(os.open(f"/outputs/{number}", os.O_CREAT))
results["files error"] = attempt(touch)
"""


def filling_task(image: Path | str) -> Task:
    """A task that fills every place that it may write to."""
    return python_task(
        image,
        ATTEMPT + FILL + TELL,
        output_bytes=8 * MIB,
        scratch_bytes=16 * MIB,
        shm_bytes=4 * MIB,
        output_inodes=200,
    )


def check_filled(found: dict[str, object]) -> None:
    """Checks the report of `FILL`.

    The task has 8 MiB and 200 files of outputs, 16 MiB of scratch, and 4 MiB of shared memory.
    """
    for name, size in {"/outputs": 8, "/scratch": 16, "/dev/shm": 4}.items():
        reached, error = found[name], found[f"{name} error"]
        assert isinstance(reached, int)
        assert error == "ENOSPC"
        assert size - 1 <= reached <= size + 6, name
    assert found["files error"] == "ENOSPC"
    assert isinstance(found["files"], int)
    assert 200 <= found["files"] <= 260
