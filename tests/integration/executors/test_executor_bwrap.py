"""Features of the bwrap executor: limits without root, cleanup, forms of outputs, image cache."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from quorate_node.executors.base import mounts
from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor, BwrapOutputs
from quorate_node.executors.sandbox.supervised_leases import is_locked
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.clock import SystemClock
from support.changing_folders import lease_groups
from support.executors.attack_programs import check_filled, filling_task, results
from support.executors.executor_cases import make_executor, python_task, what_is_left
from support.executors.image_archives import append_layer, declare_volumes, entry, tar

pytestmark = pytest.mark.bwrap
NOBODY_ELSE = 4711
SECONDS_MAX = 120


def usable_python() -> str | None:
    """An interpreter of this version that a user without rights may start."""
    for program in (sys.executable, "/usr/bin/python3"):
        code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        try:
            done = subprocess.run(
                [program, "-c", code],
                user=NOBODY_ELSE,
                group=NOBODY_ELSE,
                extra_groups=[],
                cwd="/",
                check=False,
            )
        except OSError:
            continue  # absent, or in a folder that is closed to others
        if done.returncode == 0:
            return program
    return None


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="another user can only be taken by root; the other tests run without root then",
)
def test_limits_without_root(image: Path) -> None:
    program = usable_python()
    if program is None:
        pytest.skip("no interpreter of this version that other users may start")
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copy(image, folder / "image.tar")
        (folder / "image.tar").chmod(0o644)
        os.chown(folder, NOBODY_ELSE, NOBODY_ELSE)
        script = Path(__file__).parents[2] / "support" / "executors" / "unprivileged_bwrap.py"
        done = subprocess.run(
            [program, str(script), str(folder / "image.tar"), str(folder)],
            user=NOBODY_ELSE,
            group=NOBODY_ELSE,
            extra_groups=[],
            cwd="/",
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(folder)
    found = json.loads(done.stdout)
    assert "polling" in found["limits"]
    assert "folder" in found["limits"]
    assert found["plain"]["status"] == 0
    assert found["plain"]["collected"] == {"x": "65534", "y": "y"}, (
        "files that a program closed to its own user are collected, as by root"
    )
    assert [found[name]["status"] for name in ("memory", "forks", "outputs", "time")] == [
        513,
        0,
        256 + 9,
        512,
    ]
    assert found["forks"]["collected"] == {"made": "30"}, (
        "the program and the sandbox's first process count among its 32 processes"
    )
    assert found["outputs"]["collected"] == found["hidden"]["collected"] == {"refused": "oversize"}
    assert [found[name]["status"] for name in ("hidden", "unlinked", "scratch", "mapped")] == [
        256 + 9,
        256 + 9,
        513,
        0,
    ]
    assert found["nameless"]["status"] == 513, "memory that is not mapped counts too"
    assert found["detached"]["collected"] == {"made": "[-1, -1, -1]"}, (
        "memory that belongs to no process could not be measured"
    )
    assert found["favoured"]["collected"] == {"score": "1000"}, (
        "it stays the first to be killed when memory runs out"
    )
    assert found["time"]["cpu_ms"] > 100
    assert found["left"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="memory file systems are mounted by root")
async def test_outputs_in_memory_are_sized(image: Path, tmp_path: Path) -> None:
    executor = BwrapExecutor(
        tmp_path / "leases", tmp_path / "images", SystemClock(), outputs=BwrapOutputs.MEMORY
    )
    await executor.check()
    task = filling_task(image)
    check_filled(await results(executor, task))
    await executor.remove(task.lease_id)
    assert not mounts.is_mounted(tmp_path / "leases" / task.lease_id / "outputs")


async def test_reaper_removes_what_a_killed_daemon_left(image: Path, tmp_path: Path) -> None:
    executor = make_executor("bwrap", tmp_path)
    task = python_task(
        image,
        "import os, time\nif not os.fork(): os.setsid()\ntime.sleep(100)",
        mounts={"/inputs/a": image},
    )
    await executor.check()
    await executor.start(task)
    await executor.close()
    assert await asyncio.to_thread(what_is_left, "bwrap", tmp_path) == 1
    assert list((tmp_path / "leases").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not lease_groups(task.lease_id)
    assert not [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if task.lease_id.encode() in _read(path)
    ]
    assert await asyncio.to_thread(what_is_left, "bwrap", tmp_path) == 0


async def test_a_killed_supervisor_ends_its_program_and_the_lease_can_start_again(
    image: Path, tmp_path: Path
) -> None:
    executor = make_executor("bwrap", tmp_path)
    task = python_task(image, "import time; time.sleep(100)")
    await executor.check()
    await executor.start(task)
    folder = tmp_path / "leases" / task.lease_id
    supervisor = int((folder / "lock").read_text())
    async with asyncio.timeout(20):
        while not (folder / "group").exists():
            await asyncio.sleep(0.01)  # its program has not begun
        os.kill(supervisor, 9)
        while is_locked(folder):
            await asyncio.sleep(0.02)
    assert await executor.state(task.lease_id) is TaskState.ABSENT
    with pytest.raises(Unavailable):
        await executor.wait(task.lease_id)
    await executor.start(task)
    assert await executor.state(task.lease_id) is TaskState.RUNNING
    await executor.remove(task.lease_id)
    assert await asyncio.to_thread(what_is_left, "bwrap", tmp_path) == 0


async def test_tasks_that_it_cannot_run_are_refused(image: Path, tmp_path: Path) -> None:
    executor = make_executor("bwrap", tmp_path)
    await executor.check()
    asked = [
        python_task(image, "", gpus=("GPU-1",)),
        python_task("python@sha256:" + "0" * 64, ""),
        python_task(image, "", working_dir="/nowhere"),
        python_task(image, "", mounts={"/data": image}),
    ]
    for task in asked:
        with pytest.raises(Refused) as refusal:
            await executor.start(task)
        assert refusal.value.code is Code.UNSUPPORTED
    assert await executor.leases() == []


async def test_nothing_is_made_outside_of_the_sandbox(image: Path, tmp_path: Path) -> None:
    """Bubblewrap must make nothing outside the sandbox.

    While it mounts, the machine's own root is at /oldroot: neither `..` nor an image's link may
    lead there.
    """
    outside = Path(tempfile.mkdtemp(dir="/tmp"))
    outside.chmod(0o777)
    executor = make_executor("bwrap", tmp_path)
    await executor.check()
    try:
        linked = tmp_path / "linked.tar"
        layer = tar(
            [
                entry("way", kind=tarfile.SYMTYPE, link="."),
                entry("way/data", kind=tarfile.SYMTYPE, link=f"/oldroot{outside}"),
            ]
        )
        append_layer(image, linked, layer, ["/data/volume"])
        for task in (
            python_task(image, "", working_dir=f"/scratch/../../oldroot{outside}/folder"),
            python_task(
                linked, "import os; print(os.stat('/data/volume').st_dev != os.stat('/').st_dev)"
            ),
        ):
            with contextlib.suppress(Refused):
                await executor.start(task)
                assert (await executor.wait(task.lease_id)).status == 0
                text = b"".join(
                    [piece.text async for piece in executor.logs(task.lease_id, follow=False)]
                )
                assert text == b"True\n", (
                    "the volume is covered where the link leads inside the image"
                )
        assert list(outside.iterdir()) == []
    finally:
        for lease in await executor.leases():
            await executor.remove(lease)
        shutil.rmtree(outside)


async def test_a_volume_that_no_file_system_takes_is_refused(image: Path, tmp_path: Path) -> None:
    declare_volumes(image, tmp_path / "long.tar", ["/" + "é" * 200])
    executor = make_executor("bwrap", tmp_path)
    await executor.check()
    with pytest.raises(Refused, match="File name too long"):
        await executor.start(python_task(tmp_path / "long.tar", ""))
    assert await executor.leases() == []


async def test_no_descriptor_of_the_supervisor_is_open_in_the_sandbox(
    image: Path, tmp_path: Path
) -> None:
    executor = make_executor("bwrap", tmp_path)
    await executor.check()
    task = python_task(
        image,
        "import os, json; print(json.dumps(sorted(int(name) for name in "
        "os.listdir('/proc/self/fd'))))",
    )
    try:
        await executor.start(task)
        assert (await executor.wait(task.lease_id)).status == 0
        text = b"".join([piece.text async for piece in executor.logs(task.lease_id, follow=True)])
        assert json.loads(text) == [0, 1, 2, 3]  # 3 is the listing itself
    finally:
        await executor.remove(task.lease_id)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended during the read
