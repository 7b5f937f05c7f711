"""Honest programs must have equal results in every sandbox: auditors compare them to the bit."""

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from support.executors.executor_cases import SANDBOXES, VOLUME, ending, make_executor, python_task
from support.executors.honest_programs import MAIN, PROGRAMS
from support.executors.image_archives import append_layer, entry, tar

# gVisor is a kernel of its own. Elsewhere files of root show user 65534, in a user namespace.
OWNERS = {"root", "/tmp", "/scratch", "/inputs", "/inputs/a", "/dev/shm", "/etc/hosts' mode"}
ERRORS = {"write to root", "write to image", "write to input", "new input", "kernel setting"}
IN_GVISOR = {
    *OWNERS,
    "image's file",
    *ERRORS,
    "outside",
    "outside v6",
    "real time",
    "become root",
    "give away",
    "personality",
    # what it has and the others refuse
    "unshare",
    "trace",
    "niceness",
    "terminal",
    "asynchronous I/O",
    "device",
    "devices",
    # what it lacks
    "domain",
    "unnamed file",
    "attribute in /outputs",
    "no new privileges",
    "score",
    # what it counts or numbers in its own way
    "sparse file",
    "other loopback",
}
# Engines keep these of an image as they are, and bubblewrap's images are unpacked by us.
BY_IMAGES_FILES = {"list of capabilities", "file of the user"}
SHARED_KERNEL = ("docker-runc", "docker-volume", "bwrap")
KINDS = [*(param.values[0] for param in SANDBOXES), VOLUME.values[0]]


def image_of(base: Path, folder: Path) -> Path:
    """Returns an image with whiteouts, a file capability, links, and a file of user 65534."""
    lower = [
        entry("gone/a", b"a"),
        entry("kept/b", b"b"),
        entry("opaque/old", b"o"),
        entry("target", b"t"),
        entry("alink", kind=tarfile.SYMTYPE, link="/target"),
    ]
    append_layer(base, folder / "lower.tar", tar(lower), ())
    capable, content = entry("capable", Path(sys.executable).resolve().read_bytes(), mode=0o755)
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    capable.pax_headers = {"SCHILY.xattr.security.capability": capability.decode("latin1")}
    mine, own = entry("mine", b"m", mode=0o600)
    mine.uid = mine.gid = 65534
    mine.mtime = 1_000_000_000
    upper = [
        entry(".wh.gone"),
        entry("kept/.wh.b"),
        entry("kept/new", b"n"),
        entry("opaque/.wh..wh..opq"),
        entry("opaque/new", b"n"),
        (capable, content),
        (mine, own),
    ]
    append_layer(folder / "lower.tar", folder / "image.tar", tar(upper), ())
    return folder / "image.tar"


async def results(kind: str, image: Path, folder: Path) -> dict[str, str]:
    """Returns what each program wrote in one sandbox, as JSON."""
    (folder / kind).mkdir()
    programs = folder / "programs"
    programs.write_text(json.dumps(PROGRAMS))
    async with ending(make_executor(kind, folder / kind), kind, folder / kind) as executor:
        task = python_task(
            image,
            MAIN,
            mounts={"/inputs/programs": programs, "/inputs/a": programs},
            max_duration=300,  # a busy machine took more than the usual minute
        )
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        log = b"".join([piece.text async for piece in executor.logs(task.lease_id, follow=True)])
        assert ended.status == 0, log
        await executor.collect(task.lease_id, folder / kind / "collected")
        await executor.remove(task.lease_id)
    found: dict[str, str] = json.loads((folder / kind / "collected" / "found").read_text())
    return found


@pytest.mark.rule("2.26", "2.27", "11.6")
@pytest.mark.docker
@pytest.mark.runsc
@pytest.mark.bwrap
async def test_honest_programs_have_equal_results(
    image: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = image_of(image, tmp_path)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 5)  # a daemon's, which jobs must not inherit
    request.addfinalizer(lambda: os.setpriority(os.PRIO_PROCESS, 0, own))
    found = {kind: await results(kind, made, tmp_path) for kind in KINDS}
    unequal = {name for name in PROGRAMS if len({found[kind][name] for kind in KINDS}) > 1}
    print(f"equal in {len(KINDS)} sandboxes: {len(PROGRAMS) - len(unequal)} of {len(PROGRAMS)}")
    shown = {name: {kind: found[kind][name] for kind in KINDS} for name in unequal}
    assert unequal == IN_GVISOR | BY_IMAGES_FILES, shown
    shared = {name for name in unequal if len({found[kind][name] for kind in SHARED_KERNEL}) > 1}
    assert shared == BY_IMAGES_FILES, {name: shown[name] for name in shared}
