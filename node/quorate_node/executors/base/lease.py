"""What all executors do alike with a lease: its id, inputs, exit status and log."""

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from quorate_node.executors.base.kept_log import HEAD_BYTES, TAIL_BYTES, read_piece
from quorate_protocol.messages.ports import Clock, LogPiece, Mount, Task
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_SIGNAL_BASE,
    EXIT_TIMEOUT,
    Milliseconds,
    Seconds,
)

HOOK_TARGET = "/scratch/.quorate"  # every sandbox has /scratch, and no image has files there
_READABLE_BY_ALL = 0o004
_LEASE_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]{0,99}")
_SHELL_SIGNAL_BASE = 128
_SIGNAL_MAX = 64
_SIGKILL = 9


def is_root() -> bool:
    return os.geteuid() == 0


def check_lease_id(lease_id: str, named: str) -> None:
    """Raises Refused for an id that cannot name a file; `named` is what has it as its name."""
    if not _LEASE_ID.fullmatch(lease_id):
        raise Refused(Code.MALFORMED, f"lease_id: {lease_id[:100]!r} cannot name {named}")


def mounts_of(task: Task) -> tuple[Mount, ...]:
    """The inputs, and the folder of the import hook behind them."""
    return task.mounts if task.hook is None else (*task.mounts, Mount(task.hook, HOOK_TARGET))


def python_path(task: Task, env: Mapping[str, str], hook: str = HOOK_TARGET) -> Mapping[str, str]:
    """Returns the variable by which each Python of the job finds the hook: in front of the folders
    that `env`, of image and job, names.
    """
    if task.hook is None:
        return {}
    known = env.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{hook}:{known}" if known else hook}


def checked_source(mount: Mount, user_of: str) -> Path:
    """Returns the real path of an input. Raises Refused if the job's user could not read it."""
    source = mount.source.resolve()
    if not source.exists():
        raise Refused(Code.UNKNOWN, f"mounts: {mount.target} is not in the store")
    if not source.stat().st_mode & _READABLE_BY_ALL:
        raise Refused(
            Code.UNSUPPORTED,
            f"mounts: {mount.target} must be readable by all (mode 0644) for the {user_of}'s user",
        )
    return source


def refuse_disk_scratch(task: Task) -> None:
    """For executors that cannot bound a folder on disk. Their offers promise none."""
    if task.disk_scratch_bytes:
        raise Refused(
            Code.UNSUPPORTED,
            f"scratch: {task.disk_scratch_bytes} bytes of /scratch lie on disk, which needs root, "
            "loop devices and mkfs.ext4 on the provider's machine",
        )


def exit_status(
    code: int, wall_ms: Milliseconds, max_duration: Seconds, is_memory_kill: bool
) -> int:
    """0-255 exit, 256 + signal, 512 time-out, 513 memory kill. Engines report a signal as 128 + n;
    every executor reads 129-192 as a signal, so that equal programs get equal statuses. A time-out
    follows from the measured time, also for a run while the daemon was down.
    """
    if wall_ms >= max_duration * 1000:
        return EXIT_TIMEOUT
    signal = code - _SHELL_SIGNAL_BASE
    if is_memory_kill and signal == _SIGKILL:
        return EXIT_MEMORY_KILL
    if 0 < signal <= _SIGNAL_MAX:
        return EXIT_SIGNAL_BASE + signal
    return code & 0xFF


_POLL_SECONDS = 0.1
_TAIL_POLL_SECONDS = 2.0  # so that a program that prints without end costs others little


async def follow_log(
    path: Path, clock: Clock, is_written: Callable[[], bool], at: int
) -> AsyncIterator[LogPiece]:
    """Yields what is kept of a log from `at` on, then additions while `is_written()`."""
    while True:
        # Asked before the read, so that the next round has what comes in between.
        will_grow, seen = is_written(), 0
        while not will_grow or seen < TAIL_BYTES or at < HEAD_BYTES:
            at, text = read_piece(path, at)
            if not text:
                break
            yield LogPiece(at, text)
            at, seen = at + len(text), seen + len(text)
        if not will_grow:
            return
        await clock.sleep(_POLL_SECONDS if at <= HEAD_BYTES else _TAIL_POLL_SECONDS)
