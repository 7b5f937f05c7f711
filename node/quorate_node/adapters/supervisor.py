"""The small process that outlives the daemon and keeps one lease's program: runs it, caps its log, ends it, records its exit.

Run as a script with the lease's folder as its only argument; needs nothing but the standard library. It holds a lock on the folder
as long as it lives, so whoever looks can tell "running" from "gone" without trusting a process id. `plan.json` says what to run,
`exit.json` (written atomically) how it ended; a file named `stop` asks for the end.
"""

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOG_BYTES_MAX = 1 << 20
STOP_SECONDS = 5.0
POLL_SECONDS = 0.1
MEMORY_POLL_SECONDS = 0.25
READS_MAX = 64
_PR_SET_PDEATHSIG = 1
LOG_CUT = b"\n[log cut at 1 MiB]\n"


class Supervised:
    """One program in its own session, with what was asked of it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.is_memory_kill = False
        self.stop_at: float | None = None
        self.started = time.monotonic()
        self.memory_read = 0.0
        self.peak_bytes = 0
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody would watch it after us
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (plan["output_bytes"], plan["output_bytes"]))

        self.process = subprocess.Popen(
            plan["argv"], cwd=plan["cwd"], env=plan["env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
        )  # fmt: skip

    def signal_group(self, number: signal.Signals) -> None:
        """Signals every process of the program's session that stayed in its group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass  # it ended just now

    def enforce(self, is_stop_asked: bool) -> None:
        """Ends the program when its time or memory is over, or when it was asked to stop: politely first."""
        if is_stop_asked and self.stop_at is None:
            self.signal_group(signal.SIGTERM)
            self.stop_at = time.monotonic() + STOP_SECONDS
        if time.monotonic() - self.started >= self.plan["max_duration"]:
            self.signal_group(signal.SIGKILL)
        if self.stop_at is not None and time.monotonic() >= self.stop_at:
            self.signal_group(signal.SIGKILL)
        if time.monotonic() - self.memory_read < MEMORY_POLL_SECONDS:
            return
        self.memory_read = time.monotonic()
        memory = resident_bytes(self.process.pid)
        self.peak_bytes = max(self.peak_bytes, memory)
        if memory > self.plan["memory_bytes"]:
            self.is_memory_kill = True
            self.signal_group(signal.SIGKILL)


def resident_bytes(group: int) -> int:
    """Resident memory of all processes of one process group."""
    total = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[2]) == group:
            total += int(fields[21]) * resource.getpagesize()
    return total


def main(folder: Path) -> None:
    """Runs the lease's program to its end."""
    plan = json.loads((folder / "plan.json").read_text())
    try:
        program = Supervised(plan)
    except OSError as error:
        (folder / "log").write_text(f"{plan['argv'][0]}: {error.strerror}\n")
        code = 127 if isinstance(error, FileNotFoundError) else 126
        record(folder, {"code": code, "wall_ms": 0, "cpu_ms": 0, "peak": 0, "memory_kill": False})
        return
    (folder / "group").write_text(str(program.process.pid))
    status, usage = watch(program, folder)
    ended = time.monotonic()
    program.signal_group(signal.SIGKILL)  # what it left behind in its group
    code = os.waitstatus_to_exitcode(status)
    record(folder, {
        "code": code if code >= 0 else 128 - code,
        "wall_ms": round((ended - program.started) * 1000),
        "cpu_ms": round((usage.ru_utime + usage.ru_stime) * 1000),
        "peak": max(usage.ru_maxrss * 1024, program.peak_bytes),
        "memory_kill": program.is_memory_kill,
    })  # fmt: skip


class CappedLog:
    """The program's output in a file, up to the cap; the rest is read and dropped, so that the program never blocks on it."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.written = 0

    def copy(self, pipe: int) -> bool:
        """Takes what is in the pipe now; False at its end."""
        for _ in range(READS_MAX):
            try:
                chunk = os.read(pipe, 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            if self.written <= LOG_BYTES_MAX:
                self.file.write(chunk[: LOG_BYTES_MAX - self.written])
                self.written += len(chunk)
                if self.written > LOG_BYTES_MAX:
                    self.file.write(LOG_CUT)
        return True


def watch(program: Supervised, folder: Path) -> tuple[int, resource.struct_rusage]:
    """Copies output to the log until the program ends; a child of its own that keeps the pipe open is not waited for."""
    assert program.process.stdout is not None, "opened as a pipe"
    pipe = program.process.stdout.fileno()
    os.set_blocking(pipe, False)
    ending = os.pidfd_open(program.process.pid)
    log = CappedLog(folder / "log")
    is_open = True
    while True:
        select.select([ending, pipe] if is_open else [ending], [], [], POLL_SECONDS)
        is_open = is_open and log.copy(pipe)
        pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
        if pid:
            log.copy(pipe)
            program.process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        program.enforce((folder / "stop").exists())


def record(folder: Path, ended: dict[str, Any]) -> None:
    """Atomically, so that a reader sees all of it or nothing."""
    fresh = folder / "exit.json.new"
    with fresh.open("w") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(folder / "exit.json")


def detach(folder: Path) -> None:
    """Leaves the daemon's family: the kernel's init collects this process then, whoever lives or dies meanwhile."""
    if os.fork() > 0:
        os._exit(0)
    (folder / "lock").write_text(str(os.getpid()))


if __name__ == "__main__":
    detach(Path(sys.argv[1]))
    main(Path(sys.argv[1]))
