"""Starts one lease's program, in a sandbox if the plan has one, and ends it at its limits."""

import ctypes
import glob
import json
import os
import resource
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorate_node.executors.base.neutral_mounts import OpenedSource

DEPTH_MAX = 64  # of directories; collecting the outputs has the same bound


def exceeds(folder: str, bytes_max: int, inodes_max: int) -> bool:
    """Follows no links, even if the program replaces a directory by one meanwhile."""
    total = inodes = 0
    stack: list[tuple[int, Any]] = []
    try:
        stack.append(_opened(folder, None))
        while stack:
            handle, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                os.close(handle)
                continue
            inodes += 1
            total += _disk_bytes(entry)
            if inodes > inodes_max or total > bytes_max or len(stack) > DEPTH_MAX:
                return True
            if entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError, NotADirectoryError):  # the program removed it
                    stack.append(_opened(entry.name, handle))
        return total > bytes_max
    except PermissionError:
        # The program closed the directory again just after we opened it, so it hides something.
        return True
    finally:
        for handle, entries in stack:
            entries.close()
            os.close(handle)


def _opened(name: str, parent: int | None) -> tuple[int, Any]:
    """Restores permissions: a program of our user could hide files in a closed directory."""
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


def _disk_bytes(entry: "os.DirEntry[str]") -> int:
    """Returns the bytes on disk of a directory entry; 0 for a directory."""
    try:
        return (
            0
            if entry.is_dir(follow_symlinks=False)
            else entry.stat(follow_symlinks=False).st_blocks * 512
        )
    except OSError:
        return 0  # it was removed before the read


CLONE_NEWNS = 0x20000
OUTPUTS = 1  # the place among the sources of the first that the program writes
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 16384, 1 << 18, 2, 4
LIBC = ctypes.CDLL(None, use_errno=True)


def mount_sources(stage: str, sources: list[str], written: int) -> None:
    """In a mount namespace of this process, with which the mounts end: the sandbox's user may not
    enter the daemon's private folders. Raises OSError.
    """
    _check(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
    _check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "/")
    opened = [OpenedSource(source) for source in sources]
    options = b"size=1m,nr_inodes=1024,mode=0755"
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _check(LIBC.mount(b"tmpfs", os.fsencode(stage), b"tmpfs", flags, options), stage)
    for index, source in enumerate(opened):
        target = f"{stage}/{index}"
        if source.is_folder:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        is_written = OUTPUTS <= index < OUTPUTS + written
        if is_written or not _is_neutral(source, target, f"{stage}/stage"):
            source.bind(target)
        source.close()


def _is_neutral(source: OpenedSource, target: str, stage: str) -> bool:
    """Mounts a source so that the job cannot read where it lies; False if the kernel cannot."""
    try:
        source.mount_neutral(target, stage)
    except OSError:
        # Not re-raised: some file systems take no overlay. The caller mounts it in another way.
        return False
    return True


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {what}")


_PORT_START = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_LIBC = ctypes.CDLL(None, use_errno=True)


def set_limits(limits: dict[str, list[int]]) -> None:
    """Sets limits of this process: number of the kernel -> soft and hard limit, -1 for none.

    Without root a hard limit can only fall, so a limit of the daemon that is lower stays.
    """
    for number, (soft, hard) in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(int(number), (soft, hard))


def allow_low_ports(pid: int) -> None:
    """As engines do. A child enters the sandbox's namespaces, which it cannot leave."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("user", "net")]
        may_enter = os.geteuid() == 0 or _LIBC.setns(opened[0], 0) == 0
        if may_enter and _LIBC.setns(opened[1], 0) == 0:
            with open(_PORT_START, "w", encoding="ascii") as file:
                file.write("0")
            status = 0
    finally:
        os._exit(status)


STOP_SECONDS = 5.0
USAGE_POLL_SECONDS = 0.25
SPARE_BYTES = 64 << 20  # free space that a job must leave on the disk; the content store too
OOM_SCORE = 1000  # the kernel kills jobs first when the machine has no memory left
OUTER_PROCESSES = 1  # bubblewrap's process outside the sandbox does not count for the job
PR_SET_PDEATHSIG = 1


class SupervisedProgram:
    """One program in its own session. With `sandbox` in the plan, the child joins the control
    groups, mounts the sources and gives up root between fork and exec.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.sandbox: dict[str, Any] = plan.get("sandbox") or {}
        self.is_memory_kill = False
        self.failure = ""  # why the machine failed; if it did, the exit is no result
        self.has_sent_sigterm = False
        self.stop_at: float | None = None
        self.usage_read_at = 0.0
        self.peak_bytes = self.cpu_ms = 0
        # the device of nameless files in memory
        self.memory_device = os.fstat(os.memfd_create("own")).st_dev
        self.status = b""  # what bubblewrap wrote to its status pipe
        # descriptor of the sandbox's first process: the kernel ends all others there with it
        self.init: int | None = None
        self.init_pid = 0
        self.status_pipe, self.block_pipe = -1, -1
        argv, passed = list(plan["argv"]), []
        if self.sandbox:
            passed = self._open_bwrap_pipes()
            seccomp, status_end, block_end = map(str, passed)
            argv[1:1] = ["--seccomp", seccomp, "--json-status-fd", status_end]
            argv[5:5] = ["--block-fd", block_end]
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
            preexec_fn=self._prepare,  # noqa: PLW1509 - this process has one thread
        )
        for descriptor in passed:
            os.close(descriptor)

    def _open_bwrap_pipes(self) -> list[int]:
        self.status_pipe, status_end = os.pipe()
        os.set_blocking(self.status_pipe, False)
        block_end, self.block_pipe = os.pipe()
        return [os.open(self.sandbox["seccomp"], os.O_RDONLY), status_end, block_end]

    def _prepare(self) -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            # A daemon in the background of a shell ignores some; a job starts with none ignored.
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):  # /proc is closed here; the kernel's default order applies then
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        file_bytes = self.plan["file_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        if self.sandbox:
            set_limits(self.sandbox["limits"])
            for group in self.sandbox["groups"]:
                Path(group, "cgroup.procs").write_text("0")
            if self.sandbox["stage"]:
                mount_sources(
                    self.sandbox["stage"], self.sandbox["sources"], self.sandbox["written"]
                )
                os.setgroups([])
                os.setresgid(*[self.sandbox["user"]] * 3)
                os.setresuid(*[self.sandbox["user"]] * 3)
        # The program must not outlive its supervisor. A change of user resets this, so it is last.
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def read_status(self) -> bool:
        """Reads bubblewrap's status pipe; False when the pipe is closed."""
        try:
            chunk = os.read(self.status_pipe, STATUS_BYTES_MAX)
        except BlockingIOError:
            return True
        self.status = (self.status + chunk)[:STATUS_BYTES_MAX]
        if self.init is None and (pid := status_number(self.status, "child-pid")):
            with suppress(ProcessLookupError):  # it has ended already
                self.init, self.init_pid = os.pidfd_open(pid), pid
                allow_low_ports(pid)
                self.release_sandbox(pid)
        return bool(chunk)

    def release_sandbox(self, pid: int) -> None:
        """Not before bubblewrap starts: the limit would count all the user's processes."""
        with suppress(PermissionError):  # bubblewrap is set-uid here: we only count processes
            if (counted := self.sandbox["processes_counted"]) >= 0:
                resource.prlimit(pid, resource.RLIMIT_NPROC, (counted, counted))
        with (
            suppress(BrokenPipeError),  # the sandbox has ended already
            open(self.block_pipe, "wb", buffering=0) as pipe,
        ):
            pipe.write(b"1")

    def kill(self) -> None:
        if self.init is not None:
            with suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
        _signal_group(self.process.pid, signal.SIGKILL)

    def send_sigterm(self) -> bool:
        """False while a sandbox has no program yet. Only the second process gets it: the first only
        waits for children, and bubblewrap outside would die of the signal.
        """
        if not self.sandbox:
            _signal_group(self.process.pid, signal.SIGTERM)
            return True
        for pid in children(self.init_pid):
            if inner_pid(pid) == 2:
                os.kill(pid, signal.SIGTERM)
                return True
        return False

    def enforce(self, is_stop_asked: bool) -> None:
        """Ends the program at its limits, or when somebody asked for a stop: SIGTERM, then
        SIGKILL.
        """
        now = time.monotonic()
        if is_stop_asked:
            self.stop_at = self.stop_at or now + STOP_SECONDS
            self.has_sent_sigterm = self.has_sent_sigterm or self.send_sigterm()
        if now - self.started >= self.plan["max_duration"] or (
            self.stop_at is not None and now >= self.stop_at
        ):
            self.kill()
        if now - self.usage_read_at >= USAGE_POLL_SECONDS and not self.sandbox.get("groups"):
            self.usage_read_at = now
            self._enforce_usage()

    def _enforce_usage(self) -> None:
        """Measures memory, processes and outputs, and kills a program that is over a limit."""
        found = members(self.process.pid, self.init_pid)
        tasks, cpu_ms = threads_and_cpu(found)
        pids = [pid for pid, _ in found]
        own, shared = resident(pids)
        filled = (
            memory_file_systems(self.init_pid, *self.sandbox["in_memory"]) if self.init_pid else 0
        )
        nameless = nameless_files(pids)
        # A mapped file of a memory file system is in both figures, so the larger one counts.
        memory = own + max(shared, filled + nameless.get(self.memory_device, 0))
        self.peak_bytes = max(self.peak_bytes, memory)
        self.cpu_ms = max(self.cpu_ms, cpu_ms)
        if memory > self.plan["memory_bytes"]:
            self.is_memory_kill = True
            self.kill()
        if self.sandbox and tasks > self.sandbox["processes"] + OUTER_PROCESSES:
            self.kill()
        if self.sandbox.get("watched"):
            self._enforce_outputs(self.sandbox["watched"], nameless)

    def _enforce_outputs(self, folder: str, nameless: dict[int, int]) -> None:
        """If the owner's disk is nearly full, the lease fails without a result."""
        if exceeds(
            folder,
            self.plan["output_bytes"] - nameless.get(os.stat(folder).st_dev, 0),
            self.plan["output_inodes"],
        ):
            self.kill()
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize < SPARE_BYTES:
            self.failure = self.failure or f"the disk of {folder} is full"
            self.kill()

    def was_killed_for_memory(self) -> bool:
        """By this process, or by the kernel in the lease's group."""
        if not self.sandbox.get("groups"):
            return self.is_memory_kill
        text = Path(self.sandbox["kills"]).read_text()
        return any(
            int(line.split()[1]) > 0 for line in text.splitlines() if line.startswith("oom_kill ")
        )


def _signal_group(group: int, number: signal.Signals) -> None:
    """Signals what stayed in the program's process group."""
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(group, number)


STATUS_BYTES_MAX = 1 << 16
PIDS_MAX = 1 << 22  # the kernel's own bound (PID_MAX_LIMIT)


def status_number(status: bytes, name: str) -> int | None:
    """None while no whole line has it. Skips what is no JSON object with a valid process id,
    because the supervisor sends SIGKILL to it.
    """
    for line in status.rpartition(b"\n")[0].splitlines():
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError):
            continue  # bubblewrap did not write this line
        value = tree.get(name) if isinstance(tree, dict) else None
        if type(value) is int and 0 <= value <= PIDS_MAX:
            return value
    return None


# What follows reads from /proc what no control group counts.
RSS = ("RssAnon", "RssFile", "RssShmem")
INODE_BYTES = 1024  # kernel memory of one file in a memory file system


def children(parent: int) -> list[int]:
    return [pid for pid in _processes() if parent and _stat_fields(pid)[1:2] == [str(parent)]]


def inner_pid(pid: int) -> int:
    """Returns the process's id in its own process namespace, or 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it ended before the read
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def members(group: int, init: int) -> list[tuple[int, list[str]]]:
    """Returns (process id, fields of /proc/PID/stat from the state on) of one process group, and of
    the sandbox whose first process is `init` (0: none).
    """
    space = _namespace_of(init) if init else 0
    found = [(pid, fields) for pid in _processes() if (fields := _stat_fields(pid))]
    return [
        item
        for item in found
        if int(item[1][2]) == group or (space and _namespace_of(item[0]) == space)
    ]


def threads_and_cpu(found: list[tuple[int, list[str]]]) -> tuple[int, int]:
    ticks = sum(int(field) for _, fields in found for field in fields[11:15])
    return sum(int(fields[17]) for _, fields in found), ticks * 1000 // os.sysconf("SC_CLK_TCK")


def resident(pids: list[int]) -> tuple[int, int]:
    """Returns (own and mapped, shared) bytes; both of one process come from one read."""
    own = shared = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it ended before the read
        sizes = {
            name: int(value.split()[0]) << 10
            for name, _, value in (line.partition(":") for line in text.splitlines())
            if name in RSS
        }
        own, shared = own + sum(sizes.values()), shared + sizes.get("RssShmem", 0)
    return own - shared, shared


def memory_file_systems(init: int, root: str, folders: list[str]) -> int:
    """Counts kernel memory of each file too. 0 until the sandbox changed its root: before, the
    folders are the machine's.
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


def nameless_files(pids: list[int]) -> dict[int, int]:
    """Bytes by device of open files without a name, which no directory shows."""
    sizes: dict[tuple[int, int], int] = {}
    for name in [name for pid in pids for name in glob.glob(f"/proc/{pid}/fd/*")]:
        try:
            found = os.stat(name)
        except OSError:
            continue  # it was closed before the read
        if not found.st_nlink:
            sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return {
        device: sum(size for (of, _), size in sizes.items() if of == device) for device, _ in sizes
    }


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it ended before the read


def _namespace_of(pid: int) -> int:
    """Returns the inode that identifies a process namespace, or 0 if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0  # the process has ended, or belongs to another user
