"""Measures what the processes of one lease use, from /proc, where no control group counts it."""

import glob
import os
from contextlib import suppress
from pathlib import Path

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
