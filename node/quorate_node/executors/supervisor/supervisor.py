"""The small process that outlives the daemon and keeps one lease's program: runs it, caps its
log, ends it, records its exit.

Run as a script with the lease's folder as its only argument; needs nothing but the standard
library. It holds a lock on the folder as long as it lives, so whoever looks can tell "running"
from "gone" without trusting a process id. `plan.json` says what to run, `exit.json` (written
atomically) how it ended, `failure` that it never began; a file named `stop` asks for the end.

Where the plan has `sandbox`, `argv` starts bubblewrap: this process then joins the lease's
control groups, lays the sources of the sandbox's mounts out in a mount namespace that ends with
it, and gives up root, all between fork and exec.
"""

import ctypes
import glob
import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LOG_BYTES_MAX = 1 << 20
STATUS_BYTES_MAX = 1 << 16
PIDS_MAX = 1 << 22  # the kernel's own bound (PID_MAX_LIMIT)
STOP_SECONDS = 5.0
POLL_SECONDS = 0.1
MEMORY_POLL_SECONDS = 0.25
READS_MAX = 64
SPARE_BYTES = 64 << 20  # of the disk that outputs lie on; as much as the content store leaves
RSS = ("RssAnon", "RssFile", "RssShmem")
INODE_BYTES = 1024  # in the kernel's memory, for a file of a memory file system
DEPTH_MAX = 64  # of output directories, as where they are collected
OPEN_FILES_MAX = 8192
OOM_SCORE = 1000  # the first to go
BESIDE = 1  # processes found that are not the job's: bubblewrap outside
PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 4096, 16384, 1 << 18, 2, 4
LOG_CUT = b"\n[log cut at 1 MiB]\n"
COULD_NOT_START = b"bwrap: execvp "
LIBC = ctypes.CDLL(None, use_errno=True)


class Supervised:
    """One program in its own session, with what was asked of it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.sandbox: dict[str, Any] = plan.get("sandbox") or {}
        self.is_memory_kill = False
        self.failure = ""  # of this machine: then there is no exit that could be taken for a result
        self.is_told = False
        self.stop_at: float | None = None
        self.memory_read = 0.0
        self.peak_bytes = self.cpu_ms = 0
        self.memory_device = os.fstat(
            os.memfd_create("own")
        ).st_dev  # of files in memory that never had a name
        self.status = b""  # what bubblewrap says of its child, one JSON object a line
        self.init: int | None = (
            # descriptor of the sandbox's first process, whose end is the end of all others there
            None
        )
        self.init_pid = 0
        self.status_pipe, self.gate, passed = -1, -1, []
        argv = list(plan["argv"])
        if self.sandbox:
            self.status_pipe, status_end = os.pipe()
            os.set_blocking(self.status_pipe, False)
            gate_end, self.gate = os.pipe()
            passed = [os.open(self.sandbox["seccomp"], os.O_RDONLY), status_end, gate_end]
            argv[1:1] = [
                "--seccomp",
                str(passed[0]),
                "--json-status-fd",
                str(status_end),
                "--block-fd",
                str(gate_end),
            ]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            cwd=plan["cwd"],
            env=plan["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=passed,
            preexec_fn=self.prepare,  # noqa: PLW1509 - this process has one thread
        )
        for descriptor in passed:
            os.close(descriptor)

    def prepare(self) -> None:
        """Between fork and exec."""
        with suppress(
            OSError
            # where /proc is closed; else a machine without memory ends jobs before its owner's
            # programs
        ):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (self.plan["file_bytes"], self.plan["file_bytes"])
        )
        if self.sandbox:
            resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
            for group in self.sandbox["groups"]:
                Path(group, "cgroup.procs").write_text("0")
            if self.sandbox["stage"]:
                lay_out(self.sandbox["stage"], self.sandbox["sources"])
                os.setgroups([])
                os.setresgid(*[self.sandbox["user"]] * 3)
                os.setresuid(*[self.sandbox["user"]] * 3)
        LIBC.prctl(
            PR_SET_PDEATHSIG, signal.SIGKILL
        )  # nobody would watch it after us; the kernel forgets it with a change of user

    def read_status(self) -> bool:
        """Takes what bubblewrap says; False at the end."""
        try:
            chunk = os.read(self.status_pipe, STATUS_BYTES_MAX)
        except BlockingIOError:
            return True
        self.status = (self.status + chunk)[:STATUS_BYTES_MAX]
        if self.init is None and (pid := told(self.status, "child-pid")):
            with suppress(ProcessLookupError):  # it has ended already
                self.init, self.init_pid = os.pidfd_open(pid), pid
                self.let_in(pid)
        return bool(chunk)

    def let_in(self, pid: int) -> None:
        """The sandbox's first process waits until it is bounded. Not before bubblewrap begins:
        then every process of its user counts.
        """
        with suppress(
            PermissionError
        ):  # of a bubblewrap that is set-uid: then they are watched alone
            resource.prlimit(pid, resource.RLIMIT_NPROC, (self.sandbox["processes_counted"],) * 2)
        with (
            suppress(BrokenPipeError),
            open(self.gate, "wb", buffering=0) as gate,
        ):  # it may have ended meanwhile
            gate.write(b"1")

    def kill(self) -> None:
        """Every process of the program that can be reached: its group, and its namespace where
        it has one.
        """
        if self.init is not None:
            with suppress(ProcessLookupError):  # it ended just now
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
        signal_group(self.process.pid, signal.SIGKILL)

    def tell(self) -> bool:
        """SIGTERM to the program; in a sandbox to its second process alone, for the first only
        waits and bubblewrap itself would die.
        """
        if not self.sandbox:
            signal_group(self.process.pid, signal.SIGTERM)
            return True
        for pid in children(self.init_pid):
            if inner_pid(pid) == 2:
                os.kill(pid, signal.SIGTERM)
                return True
        return False

    def enforce(self, is_stop_asked: bool) -> None:
        """Ends the program when its time or memory is over, or when it was asked to stop:
        politely first.
        """
        now = time.monotonic()
        if is_stop_asked:
            self.stop_at = self.stop_at or now + STOP_SECONDS
            self.is_told = self.is_told or self.tell()
        if now - self.started >= self.plan["max_duration"] or (
            self.stop_at is not None and now >= self.stop_at
        ):
            self.kill()
        if now - self.memory_read < MEMORY_POLL_SECONDS or self.sandbox.get("groups"):
            return
        self.memory_read = now
        found = members(self.process.pid, self.init_pid)
        tasks, cpu_ms = used(found)
        pids = [pid for pid, _ in found]
        own, shared = resident(pids)
        # What is in a memory file system and mapped as well stands in both, and is to count once.
        filled, hidden = (
            in_memory(self.init_pid, *self.sandbox["in_memory"]) if self.init_pid else 0,
            unlinked(pids),
        )
        memory = own + max(shared, filled + hidden.get(self.memory_device, 0))
        self.peak_bytes = max(self.peak_bytes, memory)
        self.cpu_ms = max(self.cpu_ms, cpu_ms)
        if memory > self.plan["memory_bytes"]:
            self.is_memory_kill = True
            self.kill()
        if self.sandbox and tasks > self.sandbox["processes"] + BESIDE:
            self.kill()
        if self.sandbox.get("watched"):
            self.watch_outputs(self.sandbox["watched"], hidden)

    def watch_outputs(self, folder: str, hidden: dict[int, int]) -> None:
        """Ends a program that writes too much to the owner's disk; when that runs out, the lease
        has failed and there is no result.
        """
        if exceeds(
            folder,
            self.plan["output_bytes"] - hidden.get(os.stat(folder).st_dev, 0),
            self.plan["output_inodes"],
        ):
            self.kill()
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize < SPARE_BYTES:
            self.failure = self.failure or f"the disk of {folder} is full"
            self.kill()

    def was_killed_for_memory(self) -> bool:
        """By us, or by the kernel, which counts it in the lease's group."""
        if not self.sandbox.get("groups"):
            return self.is_memory_kill
        text = Path(self.sandbox["kills"]).read_text()
        return any(
            int(line.split()[1]) > 0 for line in text.splitlines() if line.startswith("oom_kill ")
        )


def told(status: bytes, name: str) -> int | None:
    """A process id or an exit status out of one JSON object a line; None while no whole line has
    it.

    Jobs do not have bubblewrap's pipe. All the same a line that is nothing of the kind is passed
    over: what stands here gets a SIGKILL.
    """
    for line in status.rpartition(b"\n")[0].splitlines():
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError):
            continue  # no word of bubblewrap's
        value = tree.get(name) if isinstance(tree, dict) else None
        if type(value) is int and 0 <= value <= PIDS_MAX:
            return value
    return None


def lay_out(stage: str, sources: list[str]) -> None:
    """Sources of the sandbox's mounts as `stage`/0, 1, ... in a mount namespace of our own.

    The user that the sandbox is made by may not walk through the daemon's private folders, and
    nothing may be left mounted.
    """
    check(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
    check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "/")
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    options = b"size=1m,nr_inodes=1024,mode=0755"
    check(
        LIBC.mount(
            b"tmpfs", os.fsencode(stage), b"tmpfs", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options
        ),
        stage,
    )
    for index, (source, descriptor) in enumerate(zip(sources, opened, strict=True)):
        place = f"{stage}/{index}"
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        check(
            LIBC.mount(
                b"/proc/self/fd/%d" % descriptor,
                os.fsencode(place),
                None,
                ctypes.c_ulong(MS_BIND),
                None,
            ),
            source,
        )
        os.close(descriptor)


def check(result: int, what: str) -> None:
    """OSError of the last call when it failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {what}")


def signal_group(group: int, number: signal.Signals) -> None:
    """Signals every process of the program's session that stayed in its group."""
    with suppress(ProcessLookupError):  # it ended just now
        os.killpg(group, number)


def processes() -> list[int]:
    """All of the machine that this process can see."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it ended while we looked


def children(parent: int) -> list[int]:
    """Direct children of a process."""
    return [pid for pid in processes() if parent and stat_fields(pid)[1:2] == [str(parent)]]


def inner_pid(pid: int) -> int:
    """The process's number in its own namespace; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it ended while we looked
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def namespace_of(pid: int) -> int:
    """What tells process namespaces apart; 0 when it cannot be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0  # it has ended, or belongs to another user


def members(group: int, init: int) -> list[tuple[int, list[str]]]:
    """(pid, fields of its stat) of one process group's processes, or of those in the sandbox
    whose first process is `init`.
    """
    space = namespace_of(init) if init else 0
    found = [(pid, fields) for pid in processes() if (fields := stat_fields(pid))]
    return [
        item
        for item in found
        if int(item[1][2]) == group or (space and namespace_of(item[0]) == space)
    ]


def used(found: list[tuple[int, list[str]]]) -> tuple[int, int]:
    """Threads and CPU milliseconds of these processes together."""
    ticks = sum(int(field) for _, fields in found for field in fields[11:15])
    return sum(int(fields[17]) for _, fields in found), ticks * 1000 // os.sysconf("SC_CLK_TCK")


def resident(pids: list[int]) -> tuple[int, int]:
    """Bytes that these processes have mapped: their own and files', and shared memory. Of each
    process both are of one moment.
    """
    own = shared = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it ended while we looked
        sizes = {
            name: int(value.split()[0]) << 10
            for name, _, value in (line.partition(":") for line in text.splitlines())
            if name in RSS
        }
        own, shared = own + sum(sizes.values()), shared + sizes.get("RssShmem", 0)
    return own - shared, shared


def in_memory(init: int, root: str, folders: list[str]) -> int:
    """Bytes of the sandbox's memory file systems, with what each file takes of the kernel.
    Before its root is `root`, they are ours.
    """
    place, total = f"/proc/{init}/root", 0
    with suppress(OSError):  # the sandbox has ended
        for found in map(
            os.statvfs,
            [place + folder for folder in folders] if os.path.samefile(place, root) else [],
        ):
            total += (found.f_blocks - found.f_bfree) * found.f_frsize + (
                found.f_files - found.f_ffree
            ) * INODE_BYTES
    return total


def unlinked(pids: list[int]) -> dict[int, int]:
    """Bytes by device of files that these processes hold open and that have no name, or none any
    more, so that no tree shows them.
    """
    sizes: dict[tuple[int, int], int] = {}
    for name in [name for pid in pids for name in glob.glob(f"/proc/{pid}/fd/*")]:
        try:
            found = os.stat(name)
        except OSError:
            continue  # closed while we looked
        if not found.st_nlink:
            sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return {
        device: sum(size for (of, _), size in sizes.items() if of == device) for device, _ in sizes
    }


def exceeds(folder: str, bytes_max: int, inodes_max: int) -> bool:
    """Whether a tree is larger than it may be, or deeper than would be collected. Links are not
    followed, whatever the program swaps.
    """
    total = inodes = 0
    stack: list[tuple[int, Any]] = []
    try:
        stack.append(opened(folder, None))
        while stack:
            handle, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                os.close(handle)
                continue
            inodes += 1
            total += blocks_of(entry)
            if inodes > inodes_max or total > bytes_max or len(stack) > DEPTH_MAX:
                return True
            if entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError, NotADirectoryError):  # the program removed it
                    stack.append(opened(entry.name, handle))
        return total > bytes_max
    except PermissionError:
        # closed to us in the very moment that it was opened up: such a program hides something
        return True
    finally:
        for handle, entries in stack:
            entries.close()
            os.close(handle)


def opened(name: str, parent: int | None) -> tuple[int, Any]:
    """A directory and its entries. One that the program closed to its own user, who is ours, is
    opened up: anything could hide there.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags | os.O_PATH, dir_fd=parent)
    try:
        mode = os.fstat(handle).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
        found = os.open(f"/proc/self/fd/{handle}", os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    return found, os.scandir(found)


def blocks_of(entry: "os.DirEntry[str]") -> int:
    """Bytes on disk of a directory's entry that is a file."""
    try:
        return (
            0
            if entry.is_dir(follow_symlinks=False)
            else entry.stat(follow_symlinks=False).st_blocks * 512
        )
    except OSError:
        return 0  # it was removed while we looked


def main(folder: Path) -> None:
    """Runs the lease's program to its end."""
    plan = json.loads((folder / "plan.json").read_text())
    crash_point("supervisor.before-run")
    try:
        program = Supervised(plan)
    except subprocess.SubprocessError as error:
        fail(folder, f"the sandbox could not be prepared: {error}")
        return
    except OSError as error:
        if plan.get("sandbox"):
            fail(folder, f"{plan['argv'][0]}: {error.strerror}")
            return
        (folder / "log").write_text(f"{plan['argv'][0]}: {error.strerror}\n")
        code = 127 if isinstance(error, FileNotFoundError) else 126
        record(folder, {"code": code, "wall_ms": 0, "cpu_ms": 0, "peak": 0, "memory_kill": False})
        return
    (folder / "group").write_text(str(program.process.pid))
    status, usage = watch(program, folder)
    crash_point("supervisor.after-run")
    ended = time.monotonic()
    program.kill()  # what it left behind
    code = os.waitstatus_to_exitcode(status)
    if program.sandbox and code == 1 and told(program.status, "exit-code") is None:
        code = never_ran(folder)
        if not code:
            return
    if program.failure:
        fail(folder, program.failure)
        return
    record(
        folder,
        {
            "code": code if code >= 0 else 128 - code,
            "wall_ms": round((ended - program.started) * 1000),
            "cpu_ms": max(round((usage.ru_utime + usage.ru_stime) * 1000), program.cpu_ms),
            "peak": max(usage.ru_maxrss * 1024, program.peak_bytes),
            "memory_kill": program.was_killed_for_memory(),
        },
    )


def never_ran(folder: Path) -> int:
    """The exit status of a program that could not be started, as in a shell; 0 when the sandbox
    itself could not be made.

    Nothing of the job has run, so what stands in the log are bubblewrap's own words.
    """
    text = (folder / "log").read_bytes()[-4096:]
    if COULD_NOT_START in text:
        return 127 if text.rstrip().endswith(os.strerror(2).encode()) else 126
    fail(folder, f"the sandbox could not be made: {text.decode(errors='replace').strip()}")
    return 0


def fail(folder: Path, why: str) -> None:
    """Says why nothing ran; without a record the lease counts as never started."""
    (folder / "failure").write_text(why)


class CappedLog:
    """The program's output in a file, up to the cap; the rest is read and dropped, so that the
    program never blocks on it.
    """

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
    """Copies output to the log until the program ends; a child of its own that keeps the pipe
    open is not waited for.
    """
    assert program.process.stdout is not None, "opened as a pipe"
    pipe = program.process.stdout.fileno()
    os.set_blocking(pipe, False)
    ending = os.pidfd_open(program.process.pid)
    log = CappedLog(folder / "log")
    is_open, is_telling = True, bool(program.sandbox)
    while True:
        watched = [
            ending,
            *([pipe] if is_open else []),
            *([program.status_pipe] if is_telling else []),
        ]
        select.select(watched, [], [], POLL_SECONDS)
        is_open = is_open and log.copy(pipe)
        is_telling = is_telling and program.read_status()
        pid, status, usage = os.wait4(program.process.pid, os.WNOHANG)
        if pid:
            log.copy(pipe)
            if is_telling:
                program.read_status()
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
    crash_point("supervisor.before-record")
    fresh.rename(folder / "exit.json")
    crash_point("supervisor.after-record")


def crash_point(name: str) -> None:
    """As `quorate_runtime.process.crash_points`, which this program does without: the test that
    armed the daemon armed its children.
    """
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


def detach(folder: Path) -> None:
    """Leaves the daemon's family: the kernel's init collects this process then, whoever lives or
    dies meanwhile.
    """
    if os.fork() > 0:
        os._exit(0)
    (folder / "lock").write_text(str(os.getpid()))


if __name__ == "__main__":
    detach(Path(sys.argv[1]))
    main(Path(sys.argv[1]))
