"""Writes how a lease's program ended, or why it never began, into the lease's folder."""

import json
import os
from pathlib import Path
from typing import Any

from quorate_node.executors.sandbox.crash_point import crash_point

COULD_NOT_START = b"bwrap: execvp "
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a shell
_TAIL_BYTES = 4096


def write_exit(folder: Path, ended: dict[str, Any]) -> None:
    """Writes `exit.json` atomically, so that a reader sees the whole record or none."""
    fresh = folder / "exit.json.new"
    with fresh.open("w") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    crash_point("supervisor.before-record")
    fresh.rename(folder / "exit.json")
    crash_point("supervisor.after-record")


def write_not_started(folder: Path, code: int) -> None:
    """Records a program that could not be executed, with a shell's exit code and no usage."""
    write_exit(folder, {"code": code, "wall_ms": 0, "cpu_ms": 0, "peak": 0, "memory_kill": False})


def write_failure(folder: Path, why: str) -> None:
    """Writes why there is no result. Without `exit.json` the lease counts as never started."""
    (folder / "failure").write_text(why)


def code_of_failed_start(folder: Path) -> int:
    """Returns a shell's exit code for a program that bubblewrap could not execute.

    If bubblewrap could not make the sandbox itself, it returns 0 and writes a failure. The job has
    not run then, so the log holds bubblewrap's own messages.
    """
    text = (folder / "log").read_bytes()[-_TAIL_BYTES:]
    if COULD_NOT_START in text:
        not_found = text.rstrip().endswith(os.strerror(2).encode())
        return NOT_FOUND if not_found else NOT_EXECUTABLE
    message = text.decode(errors="replace").strip()
    write_failure(folder, f"the sandbox could not be made: {message}")
    return 0
