"""Runs the program of one lease to its end and records how it ended.

The lease's folder holds `plan.json` (what to run), `lock` (held as long as this process lives, so
that a reader need not trust a process id), `log`, `exit.json` (how the program ended) and
`failure` (why there is no result). A file named `stop` asks this process to end the program.
"""

import json
import os
import resource
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorate_node.executors.base.kept_log import KeptLog, read_all
from quorate_node.executors.sandbox.supervised_program import SupervisedProgram, status_number

# Crash points of the supervisor, for tests.
#
# The supervisor cannot import `quorate_runtime.process.crash_points`. It reads the variable
# itself; it inherits the variable from the daemon that a test armed.


def crash_point(name: str) -> None:
    """Kills this process when the variable, or the file that it names, holds exactly `name`."""
    text = os.environ.get("QUORATE_CRASH_AT", "")
    file = Path(text[1:]) if text.startswith("@") else None
    try:
        text = file.read_text() if file else text
    except FileNotFoundError:
        return  # not armed now
    if text == name:
        if file:
            file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


COULD_NOT_START = b"bwrap: execvp "
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a shell
_TAIL_BYTES = 4096


def write_exit(folder: Path, ended: dict[str, Any]) -> None:
    """Atomically: a reader sees the whole record or none."""
    fresh = folder / "exit.json.new"
    with fresh.open("w") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    crash_point("supervisor.before-record")
    fresh.rename(folder / "exit.json")
    crash_point("supervisor.after-record")


def write_not_started(folder: Path, code: int) -> None:
    """With a shell's exit code and no usage."""
    write_exit(folder, {"code": code, "wall_ms": 0, "cpu_ms": 0, "peak": 0, "memory_kill": False})


def write_failure(folder: Path, why: str) -> None:
    """Without `exit.json` the lease counts as never started."""
    (folder / "failure").write_text(why)


def code_of_failed_start(folder: Path) -> int:
    """Returns a shell's exit code if bubblewrap could not execute the program. If it could not make
    the sandbox, returns 0 and writes a failure: the log then holds bubblewrap's own messages.
    """
    text = b"".join(text for _, text in read_all(folder / "log"))[-_TAIL_BYTES:]
    if COULD_NOT_START in text:
        not_found = text.rstrip().endswith(os.strerror(2).encode())
        return NOT_FOUND if not_found else NOT_EXECUTABLE
    message = text.decode(errors="replace").strip()
    write_failure(folder, f"the sandbox could not be made: {message}")
    return 0


READS_MAX = 64


def copy_output(pipe: int, log: KeptLog) -> bool:
    """Reads what the pipe holds now; False when the pipe is closed."""
    for _ in range(READS_MAX):
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        log.write(chunk)
    return True


POLL_SECONDS = 0.1
NICENESS = 0  # of every job, as engines have it; not the daemon's


def detach(folder: Path) -> None:
    """Forks and ends the parent, so that this process is no child of the daemon any more. Who
    removes the lease as soon as the parent has ended knows whom to kill.
    """
    child = os.fork()
    if child > 0:
        (folder / "lock").write_text(str(child))
        os._exit(0)


def run_lease(folder: Path) -> None:
    crash_point("supervisor.before-run")
    with suppress(PermissionError):  # without root a niced daemon cannot give it back
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    program = _started(folder)
    if program is None:
        return
    (folder / "group").write_text(str(program.process.pid))
    status, usage = _watch(program, folder)
    crash_point("supervisor.after-run")
    ended = time.monotonic()
    program.kill()  # processes that the program left behind
    code = os.waitstatus_to_exitcode(status)
    if program.sandbox and code == 1 and status_number(program.status, "exit-code") is None:
        code = code_of_failed_start(folder)
        if not code:
            return
    if program.failure:
        write_failure(folder, program.failure)
        return
    write_exit(
        folder,
        {
            "code": code if code >= 0 else 128 - code,
            "wall_ms": round((ended - program.started) * 1000),
            "cpu_ms": max(round((usage.ru_utime + usage.ru_stime) * 1000), program.cpu_ms),
            "peak": max(usage.ru_maxrss * 1024, program.peak_bytes),
            "memory_kill": program.was_killed_for_memory(),
        },
    )


def _started(folder: Path) -> SupervisedProgram | None:
    """None if it could not be started; the folder then has the reason."""
    plan = json.loads((folder / "plan.json").read_text())
    try:
        return SupervisedProgram(plan)
    except subprocess.SubprocessError as error:
        write_failure(folder, f"the sandbox could not be prepared: {error}")
        return None
    except OSError as error:
        if plan.get("sandbox"):
            write_failure(folder, f"{plan['argv'][0]}: {error.strerror}")
            return None
        (folder / "log").write_text(f"{plan['argv'][0]}: {error.strerror}\n")
        is_missing = isinstance(error, FileNotFoundError)
        write_not_started(folder, NOT_FOUND if is_missing else NOT_EXECUTABLE)
        return None


def _watch(program: SupervisedProgram, folder: Path) -> tuple[int, resource.struct_rusage]:
    """Returns wait status and usage. Does not wait for a child that keeps the output pipe open."""
    assert program.process.stdout is not None, "opened as a pipe"
    pipe = program.process.stdout.fileno()
    os.set_blocking(pipe, False)
    process_end = os.pidfd_open(program.process.pid)
    log = KeptLog(folder / "log")
    is_log_open, is_status_open = True, bool(program.sandbox)
    while True:
        watched = [
            process_end,
            *([pipe] if is_log_open else []),
            *([program.status_pipe] if is_status_open else []),
        ]
        select.select(watched, [], [], POLL_SECONDS)
        is_log_open = is_log_open and copy_output(pipe, log)
        is_status_open = is_status_open and program.read_status()
        pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
        if pid:
            copy_output(pipe, log)
            if is_status_open:
                program.read_status()
            program.process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        program.enforce((folder / "stop").exists())
