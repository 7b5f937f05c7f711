"""/scratch and /tmp on disk, when a job asks for more of them than its memory allows."""

import json
from pathlib import Path

import pytest

from quorate_node.executors.base import mounts
from quorate_protocol.messages.determinism import PROFILES
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.refusals import Refused
from quorate_runtime.process.hook_folder import write_hook
from support.executors.attack_programs import ATTEMPT, TELL
from support.executors.executor_cases import (
    MIB,
    SANDBOXES,
    VOLUME,
    ending,
    make_executor,
    python_task,
    said,
)
from support.requirements import require

PROGRAM = (
    ATTEMPT
    + """
def fill(path):
    written = 0
    with open(path, "wb", buffering=0) as file:
        try:
            while written < 400:
                file.write(bytes(1 << 20))
                written += 1
        except OSError as error:
            results["error"] = errno.errorcode[error.errno]
    return written
results["tmp"] = fill("/tmp/x")
os.unlink("/tmp/x")
results["scratch"] = fill(os.environ["HOME"] + "/x")
os.unlink("/scratch/x")
with open("/tmp/run", "w") as file:
    file.write("#!/bin/sh\\nexit 7\\n")
os.chmod("/tmp/run", 0o755)
results["runs"] = os.path.exists("/bin/sh") and os.system("/tmp/run") >> 8
results["seen"] = [sorted(os.listdir("/tmp")), sorted(os.listdir("/scratch"))]
results["up"] = sorted(os.listdir("/tmp/.."))[:0]
results["suid"] = os.statvfs("/scratch").f_flag & os.ST_NOSUID
def touch():
    for number in range(40000):
        results["files"] = number
        os.close(os.open(f"/tmp/{number}", os.O_CREAT))
results["files error"] = attempt(touch)
"""
    + TELL
)
SCRATCH = 192 * MIB
MEMORY = 64 * MIB  # far less than what lies on disk


@pytest.mark.rule("11.7")
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_scratch_on_disk_is_larger_than_the_memory_and_bounded(
    kind: str, image: Path, tmp_path: Path
) -> None:
    require("mounts")
    task = python_task(
        image,
        PROGRAM,
        memory_bytes=MEMORY,
        scratch_bytes=SCRATCH,
        disk_scratch_bytes=SCRATCH,
        hook=write_hook(tmp_path / "hooks" / "torch", PROFILES["torch"]),
    )
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        assert executor.has_volumes
        found = json.loads((await said(executor, task)).splitlines()[-1])
        assert (await executor.wait(task.lease_id)).full == ("scratch",), "the log will say --tmp"
        volume = tmp_path / "leases" / task.lease_id / mounts.SCRATCH_NAME
        assert mounts.is_mounted(volume)
        # A daemon that was killed left it; the next one removes it with the lease.
        again = make_executor(kind, tmp_path)
        await again.check()
        await again.remove(task.lease_id)
        await again.close()
        assert not mounts.is_mounted(volume) and not volume.parent.exists()
    size = SCRATCH // MIB
    assert size <= found["tmp"] < 400 and size <= found["scratch"] < 400, found
    assert found["error"] == "ENOSPC" and found["files error"] == "ENOSPC"
    assert 15_000 < found["files"] < 20_000
    assert found["seen"] == [["run"], [".quorate"]] and found["runs"] in (False, 7)


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_full_outputs_are_named(kind: str, image: Path, tmp_path: Path) -> None:
    require("mounts")
    fill = "open('/outputs/x', 'wb').write(bytes(99 << 20))"
    task = python_task(image, f"try: {fill}\nexcept OSError: print('full')")
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        assert b"full" in await said(executor, task)
        assert (await executor.wait(task.lease_id)).full == ("outputs",)


@pytest.mark.parametrize("kind", [VOLUME])
async def test_an_executor_without_volumes_promises_no_disk(
    kind: str, image: Path, tmp_path: Path
) -> None:
    task = python_task(image, "", scratch_bytes=SCRATCH, disk_scratch_bytes=SCRATCH)
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        assert not executor.has_volumes
        with pytest.raises(Refused, match="scratch: 201326592 bytes of /scratch lie on disk"):
            await executor.start(task)


def test_little_scratch_and_little_beside_the_memory_stays_in_memory() -> None:
    gib = 1 << 30
    asked = [(256 * MIB, 16 * MIB), (257 * MIB, gib // 4), (8 * gib, 16 * gib), (9 * gib, 16 * gib)]
    found = [Resources(scratch_bytes=s, memory_bytes=m).disk_scratch_bytes for s, m in asked]
    assert found == [0, 257 * MIB, 0, 9 * gib]
