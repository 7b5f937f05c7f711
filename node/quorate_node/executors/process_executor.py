"""Runs a job as a plain child process, on devnets only, without any protection.

The program that chooses this executor shows a red banner. The executor does not unpack the image: a
Python image of `quorate image build` means "this interpreter with these packages", and the host's
own interpreter runs instead. It replaces `/inputs`, `/outputs` and `/scratch` by the lease's
folders, at the start of a word or an environment value and behind a `=`. A supervisor process
outlives the daemon, ends the job on time and records its exit.
"""

import os
import re
import sys
from pathlib import Path

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import LABEL_PYTHON, ImageInfo, refuse_shell_command
from quorate_node.executors.base.hardened_profile import check_targets, standard_env
from quorate_node.executors.base.lease import HOOK_TARGET, mounts_of, python_path
from quorate_node.executors.base.outputs import delete_tree
from quorate_node.executors.sandbox.supervised_leases import SupervisedExecutor, spawn_supervisor
from quorate_protocol.messages.ports import Sandbox, Task
from quorate_protocol.refusals import Code, Refused

_PYTHON = re.compile(r"(?:/usr/local/bin/|/usr/bin/)?python(?:3(?:\.\d+)?)?")
_ONLY = (
    "without one, only images of `quorate image build --python` can be run, by the host's own "
    "interpreter"
)
_FOLDERS = ("inputs", "outputs", "scratch")


class ProcessExecutor(SupervisedExecutor):
    """`Executor` without protection. `home` holds one folder per lease."""

    sandbox = Sandbox.PROCESS

    def _begin(self, task: Task) -> None:
        info = _python_image(task)
        folder = self._folder(task.lease_id)
        plan = plan_of(task, info, folder)
        delete_tree(folder)  # a killed supervisor may have left it; the program runs again
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True)
        for mount in mounts_of(task):
            view = folder / mount.target.lstrip("/")
            view.parent.mkdir(parents=True, exist_ok=True)
            view.symlink_to(mount.source.resolve())
        spawn_supervisor(folder, plan)


def plan_of(task: Task, image: ImageInfo, folder: Path) -> dict[str, object]:
    """Raises Refused(UNSUPPORTED) for what a plain process cannot do."""
    check_targets([mount.target for mount in task.mounts])
    if any(not mount.target.startswith("/inputs/") for mount in task.mounts):
        raise Refused(
            Code.UNSUPPORTED, "mounts: without a container engine inputs can only be below /inputs"
        )
    argv = task.argv or (*image.entrypoint, *image.command)
    refuse_shell_command(image, argv)
    if not argv or not _PYTHON.fullmatch(argv[0]):
        raise Refused(
            Code.UNSUPPORTED, "command: without a container engine only python3 can be run"
        )
    places = [str(folder / name) for name in _FOLDERS]
    env = {
        "PATH": os.defpath,
        **dict(item.partition("=")[::2] for item in image.env if not item.startswith("PATH=")),
        **standard_env(*places),
        **{name: _rewritten(value, folder) for name, value in task.env.items()},
    }
    env |= python_path(task, env, f"{folder}{HOOK_TARGET}")
    working = _rewritten(task.working_dir, folder)
    return {
        "argv": [sys.executable, *(_rewritten(word, folder) for word in argv[1:])],
        "env": env,
        "cwd": working if working != task.working_dir else places[2],
        "max_duration": task.max_duration,
        "memory_bytes": task.memory_bytes,
        "file_bytes": task.output_bytes,
        "output_bytes": task.output_bytes,
        "output_inodes": task.output_inodes,
    }


def _python_image(task: Task) -> ImageInfo:
    if not isinstance(task.image, Path):
        raise Refused(Code.UNSUPPORTED, f"image: registry images need a container engine; {_ONLY}")
    info = read_archive(task.image)
    if info.label(LABEL_PYTHON) is None:
        raise Refused(Code.UNSUPPORTED, f"image: it needs a container engine; {_ONLY}")
    return info


def _rewritten(text: str, folder: Path) -> str:
    """Puts the lease's folder in the place of `/outputs/x`, also in `--to=/outputs/x`."""
    option, equals, value = text.rpartition("=")
    for name in _FOLDERS:
        if value == f"/{name}" or value.startswith(f"/{name}/"):
            return f"{option}{equals}{folder}{value}"
    return text
