"""Devnet only: runs a job as a plain child process. Nothing stands between the job and the machine; whoever builds this executor shows
the red banner.

The image is not unpacked: a Python image of `quorate image build` means "this interpreter with these packages", and the host's own
interpreter takes its place. `/inputs`, `/outputs` and `/scratch` at the start of a word or of an environment value (or behind a `=`)
are rewritten to the lease's folders. A supervisor process outlives the daemon, ends the job on time, and records its exit.
"""

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from quorate_content.image_archive import LABEL_PYTHON, ImageInfo, read_archive, refuse_shell_command
from quorate_node.adapters.docker_profile import check_targets, standard_env
from quorate_node.adapters.exit_status import exit_status
from quorate_node.adapters.log_file import follow_file
from quorate_node.adapters.outputs import OutputCaps, collect_tree, delete_tree
from quorate_protocol.ports import Clock, Exit, Sandbox, Task, TaskState, Usage
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Milliseconds, Seconds

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PYTHON = re.compile(r"(?:/usr/local/bin/|/usr/bin/)?python(?:3(?:\.\d+)?)?")
_ONLY = "without one, only images of `quorate image build --python` can be run, by the host's own interpreter"
_FOLDERS = ("inputs", "outputs", "scratch")
_LEASE_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]{0,99}")
_POLL_SECONDS = 0.02
_SPAWN_SECONDS = 30
_POLL_SECONDS_MAX = 0.25


class ProcessExecutor:
    """`Executor` without protection. `home` holds one folder per lease."""

    sandbox = Sandbox.PROCESS

    def __init__(self, home: Path, clock: Clock) -> None:
        self._home = home
        self._clock = clock

    async def check(self) -> None:
        """Unavailable when the folder cannot be written."""
        try:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{self._home} cannot be made: {error.strerror}", 60.0) from error

    async def start(self, task: Task) -> None:
        """Writes the plan and starts the supervisor, unless one runs or the program has ended."""
        if not _LEASE_ID.fullmatch(task.lease_id):
            raise Refused(Code.MALFORMED, f"lease_id: {task.lease_id[:100]!r} cannot name a folder")
        if self._state(task.lease_id) is TaskState.ABSENT:
            await asyncio.to_thread(self._start, task)

    async def state(self, lease_id: str) -> TaskState:
        """From the supervisor's lock and its record."""
        return self._state(lease_id)

    async def wait(self, lease_id: str) -> Exit:
        """Polls for the record: the supervisor need not be a child of this process. Unavailable when it was killed."""
        pause = _POLL_SECONDS
        while True:
            match self._state(lease_id):
                case TaskState.EXITED:
                    return self._exit(lease_id)
                case TaskState.ABSENT:
                    raise Unavailable(f"lease {lease_id} has no process; it was killed with its supervisor, or never started")
                case TaskState.RUNNING:
                    await self._clock.sleep(pause)
                    pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    async def logs(self, lease_id: str, follow: bool) -> AsyncIterator[bytes]:
        """The captured file; with `follow` until the program has ended."""
        async for chunk in follow_file(
            self._folder(lease_id) / "log", self._clock, lambda: follow and self._state(lease_id) is TaskState.RUNNING
        ):
            yield chunk

    async def collect(self, lease_id: str, destination: Path) -> None:
        """Copies the outputs within the task's caps."""
        plan = self._plan(lease_id)
        caps = OutputCaps(int(plan["output_bytes"]), int(plan["output_inodes"]))
        await asyncio.to_thread(collect_tree, self._folder(lease_id) / "outputs", destination, caps)

    async def stop(self, lease_id: str) -> None:
        """Asks the supervisor to end the program: SIGTERM, then SIGKILL after 5 s. Returns when it has ended."""
        while self._state(lease_id) is TaskState.RUNNING:
            (self._folder(lease_id) / "stop").touch()
            await self._clock.sleep(_POLL_SECONDS)

    async def remove(self, lease_id: str) -> None:
        """Kills what still runs and deletes the folder."""
        await asyncio.to_thread(end_lease, self._folder(lease_id))

    async def leases(self) -> Sequence[str]:
        """Every folder."""
        return sorted(path.name for path in self._home.iterdir()) if self._home.is_dir() else []

    async def close(self) -> None:
        """Nothing is held; programs run on."""

    def _folder(self, lease_id: str) -> Path:
        return self._home / lease_id

    def _state(self, lease_id: str) -> TaskState:
        folder = self._folder(lease_id)
        if (folder / "exit.json").exists():
            return TaskState.EXITED
        if is_locked(folder):
            return TaskState.RUNNING
        # asked again: it may have ended between the two questions
        return TaskState.EXITED if (folder / "exit.json").exists() else TaskState.ABSENT

    def _start(self, task: Task) -> None:
        info = _python_image(task)
        plan = plan_of(task, info, self._folder(task.lease_id))
        folder = self._folder(task.lease_id)
        delete_tree(folder)  # what a supervisor that was killed left behind: the program runs anew
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True)
        for mount in task.mounts:
            view = folder / mount.target.lstrip("/")
            view.parent.mkdir(parents=True, exist_ok=True)
            view.symlink_to(mount.source.resolve())
        (folder / "plan.json").write_text(json.dumps(plan))
        _spawn(folder)

    def _plan(self, lease_id: str) -> dict[str, int]:
        try:
            plan: dict[str, int] = json.loads((self._folder(lease_id) / "plan.json").read_text())
        except FileNotFoundError as error:
            raise Unavailable(f"lease {lease_id} has no process") from error
        return plan

    def _exit(self, lease_id: str) -> Exit:
        ended = json.loads((self._folder(lease_id) / "exit.json").read_text())
        limit = Seconds(self._plan(lease_id)["max_duration"])
        wall = Milliseconds(ended["wall_ms"])
        status = exit_status(ended["code"], wall, limit, ended["memory_kill"])
        return Exit(status, Usage(Milliseconds(min(wall, limit * 1000)), ended["cpu_ms"], ended["peak"]))


def plan_of(task: Task, image: ImageInfo, folder: Path) -> dict[str, object]:
    """What the supervisor runs. Refused(UNSUPPORTED) for what a plain process cannot stand in for."""
    check_targets([mount.target for mount in task.mounts])
    if any(not mount.target.startswith("/inputs/") for mount in task.mounts):
        raise Refused(Code.UNSUPPORTED, "mounts: without a container engine inputs can only stand below /inputs")
    argv = task.argv or (*image.entrypoint, *image.command)
    refuse_shell_command(image, argv)
    if not argv or not _PYTHON.fullmatch(argv[0]):
        raise Refused(Code.UNSUPPORTED, "command: without a container engine only python3 can be run")
    places = [str(folder / name) for name in _FOLDERS]
    env = {
        "PATH": os.defpath,
        **dict(item.partition("=")[::2] for item in image.env if not item.startswith("PATH=")),
        **standard_env(*places),
        **{name: _rewritten(value, folder) for name, value in task.env.items()},
    }
    working = _rewritten(task.working_dir, folder)
    return {
        "argv": [sys.executable, *(_rewritten(word, folder) for word in argv[1:])],
        "env": env,
        "cwd": working if working != task.working_dir else places[2],
        "max_duration": task.max_duration,
        "memory_bytes": task.memory_bytes,
        "output_bytes": task.output_bytes,
        "output_inodes": task.output_inodes,
    }


def is_locked(folder: Path) -> bool:
    """True while a supervisor lives: it inherited the lock, and the kernel drops it with the process."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def end_lease(folder: Path) -> None:
    """Kills the program, its process group and the supervisor, and deletes the folder.

    While the lock is held, the process ids in the files are still those of the lease.
    """
    for name, kill in (("group", os.killpg), ("lock", os.kill)):
        if is_locked(folder) and (text := _text(folder / name)):
            try:
                kill(int(text), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended just now
    delete_tree(folder)


def _spawn(folder: Path) -> None:
    """Starts the supervisor in a session of its own, holding the lock from before its first instruction; returns once it is detached."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / "supervisor.log").open("wb") as errors:
            subprocess.run(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, start_new_session=True, pass_fds=(descriptor,), cwd="/", check=True, timeout=_SPAWN_SECONDS,
            )  # fmt: skip
    finally:
        os.close(descriptor)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""  # not written yet


def _python_image(task: Task) -> ImageInfo:
    if not isinstance(task.image, Path):
        raise Refused(Code.UNSUPPORTED, f"image: registry images need a container engine; {_ONLY}")
    info = read_archive(task.image)
    if info.label(LABEL_PYTHON) is None:
        raise Refused(Code.UNSUPPORTED, f"image: it needs a container engine; {_ONLY}")
    return info


def _rewritten(text: str, folder: Path) -> str:
    """`/outputs/x` and `--to=/outputs/x` with the lease's folder in front."""
    option, equals, value = text.rpartition("=")
    for name in _FOLDERS:
        if value == f"/{name}" or value.startswith(f"/{name}/"):
            return f"{option}{equals}{folder}{value}"
    return text
