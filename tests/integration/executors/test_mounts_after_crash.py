"""A daemon killed between two steps of a mount: the next one finishes the mount.

No job can then write an input or see another's folder.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate_node.executors.base import mounts
from quorate_node.executors.base.outputs import OutputCaps, collect_tree
from quorate_protocol.refusals import Unavailable
from support.requirements import require

KILLED = """
import sys
from pathlib import Path
from quorate_node.executors.base import mounts
from quorate_runtime.process import crash_points
crash_points.configure(sys.argv[1])
{call}
"""
SIZED = (
    "mounts.mount_sized(Path(sys.argv[2]) / 'disk', Path(sys.argv[2]) / 'view', 1 << 20, 64, 65534)"
)
BOUND = "mounts.bind_read_only(Path(sys.argv[2]) / 'source', Path(sys.argv[2]) / 'view')"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    require("mounts")
    yield tmp_path
    mounts.unmount(tmp_path / "view")
    assert not mounts.is_mounted(tmp_path / "view")


def die(folder: Path, point: str, call: str) -> None:
    """Runs a call in a process of its own, which is killed at the point."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(call=call), point, str(folder)],
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", ["mount.before", "mount.after"])
def test_a_sized_file_system_is_empty_for_the_job(folder: Path, point: str) -> None:
    die(folder, point, SIZED)
    mounts.mount_sized(folder / "disk", folder / "view", 1 << 20, 64, 65534)
    assert list((folder / "view").iterdir()) == [], (
        "what mkfs made would be part of this provider's result alone"
    )
    assert os.statvfs(folder / "view").f_flag & os.ST_NOSUID


@pytest.mark.parametrize("point", ["mount.before", "mount.after"])
def test_an_input_cannot_be_written(folder: Path, point: str) -> None:
    (folder / "source").mkdir()
    (folder / "source" / "data").write_text("somebody's")
    die(folder, point, BOUND)
    mounts.bind_read_only(folder / "source", folder / "view")
    with pytest.raises(OSError, match="Read-only"):
        (folder / "view" / "data").write_text("mine now")
    assert (folder / "source" / "data").read_text() == "somebody's"


def test_outputs_wait_while_the_disk_is_full(folder: Path) -> None:
    """The disk here is a small volume. What was begun is removed, and a later try has room."""
    mounts.mount_sized(folder / "disk", folder / "view", 1 << 20, 64, 65534)
    (folder / "made").mkdir()
    (folder / "made" / "large").write_bytes(bytes(64 << 20))
    target, caps = folder / "view" / "outputs" / "new", OutputCaps(1 << 30, 10)
    with pytest.raises(Unavailable, match="no room for outputs in .*free some disk"):
        collect_tree(folder / "made", target, caps)
    assert list(target.parent.iterdir()) == []
    (folder / "made" / "large").write_bytes(b"little")
    collect_tree(folder / "made", target, caps)
    with pytest.raises(Unavailable, match=r"no room for scratch of a job \(.*free some disk"):
        mounts.mount_scratch(folder / "view", 1 << 30, 65534)
    assert not mounts.is_mounted(folder / "view" / "scratch")


@pytest.mark.parametrize("point", ["unmount.before", "unmount.after"])
def test_an_unmount_is_repeated(folder: Path, point: str) -> None:
    mounts.mount_sized(folder / "disk", folder / "view", 1 << 20, 64, 65534)
    die(folder, point, "mounts.unmount(Path(sys.argv[2]) / 'view')")
    mounts.unmount(folder / "view")
    assert not mounts.is_mounted(folder / "view")
