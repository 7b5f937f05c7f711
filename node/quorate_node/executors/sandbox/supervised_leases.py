"""The base class of executors whose programs a supervisor process keeps running.

Each lease has a folder. `plan.json` says what runs, the supervisor holds `lock` as long as it
lives, `exit.json` says how the program ended, `failure` why it could not begin, and `log` holds the
output. A daemon that restarts, or a second executor object, reads all of it there.
"""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from quorate_node.executors.base import cgroups, mounts
from quorate_node.executors.base.lease import check_lease_id, exit_status, follow_log
from quorate_node.executors.base.outputs import OutputCaps, collect_tree, delete_tree
from quorate_protocol.messages.ports import (
    Clock,
    Exit,
    LogPiece,
    RegistryLogin,
    Sandbox,
    Task,
    TaskState,
    Usage,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Milliseconds, Seconds
from quorate_runtime.process.crash_points import crash_point

_SUPERVISOR = Path(__file__).with_name("__main__.py")
_POLL_SECONDS = 0.02
_POLL_SECONDS_MAX = 0.25
_SPAWN_SECONDS = 30


class SupervisedExecutor:
    """The part of `Executor` that only needs the folder of a lease.

    Subclasses start and end leases (`_begin`, `_end`) in worker threads.
    """

    sandbox: Sandbox
    has_volumes = True

    def __init__(self, home: Path, clock: Clock) -> None:
        self._home = home
        self._clock = clock

    async def check(self) -> None:
        try:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{self._home} cannot be made: {error.strerror}", 60.0) from error

    async def fetch_image(
        self,
        lease_id: str,
        name: str,
        deadline_seconds: float,
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None:
        """This executor has no images from registries."""
        raise Refused(
            Code.UNSUPPORTED,
            "image: registry images need a container engine; name the image by CID",
        )

    def image_requirement(self, name: str) -> str:
        return ""

    async def start(self, task: Task) -> None:
        check_lease_id(task.lease_id, "a folder")
        if lease_state(self._folder(task.lease_id)) is TaskState.ABSENT:
            crash_point("container.before-create")
            await asyncio.to_thread(self._begin, task)

    async def state(self, lease_id: str) -> TaskState:
        return lease_state(self._folder(lease_id))

    async def wait(self, lease_id: str) -> Exit:
        """Polls, because the supervisor may not be a child of this process. Raises Unavailable if
        it was killed or the program could not begin.
        """
        pause = _POLL_SECONDS
        folder = self._folder(lease_id)
        while True:
            match lease_state(folder):
                case TaskState.EXITED:
                    return self._exit(lease_id)
                case TaskState.ABSENT:
                    why = (
                        read_text(folder / "failure")
                        or "it was killed with its supervisor, or never started"
                    )
                    raise Unavailable(f"lease {lease_id} has no process; {why}")
                case TaskState.RUNNING:
                    await self._clock.sleep(pause)
                    pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        folder = self._folder(lease_id)
        return follow_log(
            folder / "log",
            self._clock,
            lambda: follow and lease_state(folder) is TaskState.RUNNING,
            at,
        )

    async def collect(self, lease_id: str, destination: Path) -> None:
        plan = self._plan(lease_id)
        caps = OutputCaps(int(plan["output_bytes"]), int(plan["output_inodes"]))
        crash_point("container.before-collect")
        await asyncio.to_thread(self._collect, self._folder(lease_id), destination, caps)
        crash_point("container.after-collect")

    async def stop(self, lease_id: str) -> None:
        """SIGTERM, then SIGKILL after 5 s. Returns when the program has ended."""
        folder = self._folder(lease_id)
        while lease_state(folder) is TaskState.RUNNING:
            (folder / "stop").touch()
            await self._clock.sleep(_POLL_SECONDS)

    async def remove(self, lease_id: str) -> None:
        crash_point("container.before-remove")
        await asyncio.to_thread(end_lease, self._folder(lease_id))
        crash_point("container.after-remove")

    async def leases(self) -> Sequence[str]:
        return sorted(path.name for path in self._home.iterdir()) if self._home.is_dir() else []

    async def close(self) -> None: ...

    # ---------------------------------------------------------------------------- in worker threads

    def _begin(self, task: Task) -> None:
        raise NotImplementedError

    def _collect(self, folder: Path, destination: Path, caps: OutputCaps) -> None:
        collect_tree(folder / "outputs", destination, caps)

    def _folder(self, lease_id: str) -> Path:
        return self._home / lease_id

    def _plan(self, lease_id: str) -> Mapping[str, int]:
        try:
            plan: Mapping[str, int] = json.loads((self._folder(lease_id) / "plan.json").read_text())
        except FileNotFoundError as error:
            raise Unavailable(f"lease {lease_id} has no process") from error
        return plan

    def _exit(self, lease_id: str) -> Exit:
        ended = json.loads((self._folder(lease_id) / "exit.json").read_text())
        limit = Seconds(self._plan(lease_id)["max_duration"])
        wall = Milliseconds(ended["wall_ms"])
        status = exit_status(ended["code"], wall, limit, ended["memory_kill"])
        return Exit(
            status, Usage(Milliseconds(min(wall, limit * 1000)), ended["cpu_ms"], ended["peak"])
        )


def lease_state(folder: Path) -> TaskState:
    if (folder / "exit.json").exists():
        return TaskState.EXITED
    if is_locked(folder):
        return TaskState.RUNNING
    # The program may have ended between the first question and the second.
    return TaskState.EXITED if (folder / "exit.json").exists() else TaskState.ABSENT


def is_locked(folder: Path) -> bool:
    """The supervisor inherited the lock, and the kernel releases it when the process ends."""
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


def spawn_supervisor(folder: Path, plan: Mapping[str, object]) -> None:
    """Returns once it is detached. It holds the lock from its first instruction on."""
    fresh = folder / "plan.json.new"
    fresh.write_text(json.dumps(plan))
    # The rename makes sure that no reader finds half a plan. Other leases read it too.
    fresh.rename(folder / "plan.json")
    crash_point("container.after-create")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / "supervisor.log").open("wb") as errors:
            crash_point("container.before-start")
            subprocess.run(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=(descriptor,),
                cwd="/",
                check=True,
                timeout=_SPAWN_SECONDS,
            )
            crash_point("container.after-start")
    finally:
        os.close(descriptor)


def kill_supervised(folder: Path) -> None:
    """While the lock is held, the process ids in the files are still those of the lease."""
    for name, kill in (("group", os.killpg), ("lock", os.kill)):
        if is_locked(folder) and (text := read_text(folder / name)):
            try:
                kill(int(text), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended


def read_text(path: Path) -> str:
    """Returns the file's text, or "" if there is no file yet."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def end_lease(folder: Path) -> None:
    """May be repeated. Raises Unavailable while the outputs are in use."""
    kill_supervised(folder)
    cgroups.end_lease_groups(folder.name)
    mounts.unmount_volumes(folder)
    delete_tree(folder)


def reap_processes(home: Path) -> int:
    """Ends all leases of the process or bwrap executor of `home`; returns how many."""
    folders = list(home.iterdir()) if home.is_dir() else []
    for folder in folders:
        end_lease(folder)
    return len(folders)
