"""Runs the program of one lease to its end and records how it ended.

The lease's folder holds `plan.json` (what to run), `lock` (held as long as this process lives, so
that a reader need not trust a process id), `log`, `exit.json` (how the program ended) and
`failure` (why there is no result). A file named `stop` asks this process to end the program.
"""

import json
import os
import resource
import select
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from quorate_node.executors.sandbox.bwrap_status import status_number
from quorate_node.executors.sandbox.capped_log import CappedLog
from quorate_node.executors.sandbox.crash_point import crash_point
from quorate_node.executors.sandbox.exit_record import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    code_of_failed_start,
    write_exit,
    write_failure,
    write_not_started,
)
from quorate_node.executors.sandbox.supervised_program import SupervisedProgram

POLL_SECONDS = 0.1
NICENESS = 0  # of every job, as engines have it; not the daemon's


def detach(folder: Path) -> None:
    """Forks and ends the parent, so that this process is no child of the daemon any more."""
    if os.fork() > 0:
        os._exit(0)
    (folder / "lock").write_text(str(os.getpid()))


def run_lease(folder: Path) -> None:
    """Runs the lease's program, enforces its limits and writes its exit record."""
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
    """Starts the program and returns it.

    Returns None if it could not be started, after it has written the reason into the folder.
    """
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
    """Copies output to the log until the program ends; returns its wait status and usage.

    A child of the program that keeps the output pipe open is not waited for.
    """
    assert program.process.stdout is not None, "opened as a pipe"
    pipe = program.process.stdout.fileno()
    os.set_blocking(pipe, False)
    process_end = os.pidfd_open(program.process.pid)
    log = CappedLog(folder / "log")
    is_log_open, is_status_open = True, bool(program.sandbox)
    while True:
        watched = [
            process_end,
            *([pipe] if is_log_open else []),
            *([program.status_pipe] if is_status_open else []),
        ]
        select.select(watched, [], [], POLL_SECONDS)
        is_log_open = is_log_open and log.copy(pipe)
        is_status_open = is_status_open and program.read_status()
        pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
        if pid:
            log.copy(pipe)
            if is_status_open:
                program.read_status()
            program.process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        program.enforce((folder / "stop").exists())
