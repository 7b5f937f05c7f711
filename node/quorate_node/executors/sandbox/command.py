"""Converts a task to one command line of bubblewrap. Pure.

The program sees the same as in the hardened container: a read-only root, read-only inputs and one
folder for outputs; no network, no capabilities, user 65534; sized memory file systems for /scratch,
/tmp and /dev/shm. A job chooses only what `Task` has fields for.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate_content.images.image_info import ImageInfo, refuse_shell_command
from quorate_node.executors.base.hardened_profile import LEAST_BYTES, check_targets, program_env
from quorate_node.executors.base.likeness import PATH_DEFAULT
from quorate_protocol.messages.ports import Task
from quorate_protocol.refusals import Code, Refused

USER = 65534
_MADE_HERE = ("/scratch", "/tmp")


@dataclass(frozen=True, slots=True)
class SandboxMounts:
    """The sources of the sandbox's mounts on the host; `inputs` in the task's order."""

    root: str
    outputs: str
    inputs: tuple[str, ...]
    covered: tuple[
        str, ...
    ] = ()  # Folders inside the root that get a memory file system: the image's volumes.


def check_task(task: Task, image: ImageInfo) -> tuple[str, ...]:
    """Returns the words of the command. Raises Refused(UNSUPPORTED), which names the field."""
    check_targets([mount.target for mount in task.mounts])
    for mount in task.mounts:
        if not mount.target.startswith("/inputs/"):
            raise Refused(
                Code.UNSUPPORTED,
                f"mounts: {mount.target[:200]!r}: in this sandbox inputs must be below /inputs",
            )
    if task.gpus:
        raise Refused(Code.UNSUPPORTED, "gpus: they need a container engine")
    argv = task.argv or (*image.entrypoint, *image.command)
    if not argv:
        raise Refused(Code.MALFORMED, "command: the job gives none and the image has none")
    refuse_shell_command(image, argv)
    return argv


def bwrap_command(
    program: str, task: Task, image: ImageInfo, sources: SandboxMounts, masks: Sequence[str]
) -> list[str]:
    """`masks` are files of /proc that this kernel has and that a job must not read."""
    argv = check_task(task, image)
    words = [
        program,
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    words += [
        "--die-with-parent",
        "--uid",
        str(USER),
        "--gid",
        str(USER),
        "--cap-drop",
        "ALL",
        "--hostname",
        "job",
        "--clearenv",
    ]
    for name, value in environment(task, image).items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", sources.root, "/", "--proc", "/proc", "--dev", "/dev"]
    # The machine has few terminals for all jobs together.
    words += ["--dev-bind", "/dev/null", "/dev/pts/ptmx", "--mqueue", "/dev/mqueue"]
    for mask in masks:
        words += ["--ro-bind", "/dev/null", mask]
    # Otherwise a program could undo its score as the first to be killed when memory runs out
    # (`supervised_program.OOM_SCORE`).
    words += ["--remount-ro", "/proc"]
    if task.shm_bytes:
        words += _sized("/dev/shm", task.shm_bytes)
    words += [
        "--remount-ro",
        "/dev",
        *_sized("/scratch", task.scratch_bytes),
        *_sized("/tmp", task.scratch_bytes),
    ]
    for target in sources.covered:
        words += _sized(target, task.scratch_bytes)
    words += ["--perms", "0755", "--tmpfs", "/inputs"]
    for source, mount in zip(sources.inputs, task.mounts, strict=True):
        words += ["--ro-bind", source, mount.target]
    words += ["--remount-ro", "/inputs", "--bind", sources.outputs, "/outputs"]
    folder = working_folder(task.working_dir)
    if folder.startswith(tuple(f"{place}/" for place in _MADE_HERE)):
        words += ["--dir", folder]
    return [*words, "--chdir", folder, "--", *argv]


def working_folder(working_dir: str) -> str:
    """With `..` bubblewrap would make a folder outside the sandbox, on the machine itself."""
    return posixpath.normpath("/" + working_dir.lstrip("/")) if working_dir else "/scratch"


def environment(task: Task, image: ImageInfo) -> Mapping[str, str]:
    """May hold loader variables, because no host program runs with it."""
    return {"PATH": PATH_DEFAULT, "HOSTNAME": "job", **program_env(task, image.env)}


def _sized(target: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(max(size, LEAST_BYTES)), "--tmpfs", target]
