"""Limits leases by the kernel's control groups and reads their CPU time and peak memory.

Works with version 1, version 2 and the hybrid of both. The executor gives each container a parent
group that has the lease's name. At exit the engine removes the container's group with its counters,
but never the parent, whose counters include the child's. So the figures are exact for the shortest
job and survive a restart of the daemon. An engine that leaves groups to systemd gives no such
parent. There the executor samples a running container.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PARENT = "/quorate"
_ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000
_NEEDED = ("memory", "pids", "cpu")
# Control groups of version 1 count the buffers of TCP sockets beside memory, and only if they have
# a limit. Version 2 counts them in memory.
_TCP_LIMIT = "memory.kmem.tcp.limit_in_bytes"
_TCP_PARTS = 4  # buffers of sockets may take one of so many parts of the memory, beside it
_OPTIONAL = ("memory.memsw.limit_in_bytes", _TCP_LIMIT)  # files that some kernels lack
COUNTING_KERNEL = (5, 14)
_END_SECONDS = 5.0
_END_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel has counted so far."""

    cpu_ms: int = 0
    peak_memory_bytes: int = 0

    def at_least(self, other: "Counters") -> "Counters":
        return Counters(
            max(self.cpu_ms, other.cpu_ms), max(self.peak_memory_bytes, other.peak_memory_bytes)
        )


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """What the processes of one lease may use together."""

    memory_bytes: int
    pids: int
    cpu_millis: int


@dataclass(frozen=True, slots=True)
class LeaseGroups:
    """A process joins by writing 0 to each `cgroup.procs`. `kills` counts memory kills."""

    folders: tuple[Path, ...]
    kills: Path


def make_lease_groups(lease_id: str, limits: LeaseLimits, root: Path = _ROOT) -> LeaseGroups | None:
    """Returns None without root or with read-only control groups, as in containers."""
    try:
        if all((root / name).is_dir() for name in _NEEDED):
            return _make_version_1(lease_id, limits, root)
        return (
            _make_version_2(lease_id, limits, root)
            if (root / "cgroup.controllers").exists()
            else None
        )
    except OSError:
        # Not re-raised: the caller limits the lease in another way and reports that.
        remove_lease_groups(lease_id, root)
        return None


def limit_sockets(lease_id: str, name: str, memory_bytes: int, root: Path = _ROOT) -> bool:
    """Limits TCP buffers of a container that an engine will start in group `name`; False if it
    cannot. Version 2 needs nothing. The group must exist before the container: older sockets are
    never counted.
    """
    memory = root / "memory"
    if not memory.is_dir():
        return True
    group = memory / PARENT.strip("/") / lease_id / name
    try:
        group.mkdir(parents=True, exist_ok=True)
        if not (group / _TCP_LIMIT).exists():
            return False
        (group / _TCP_LIMIT).write_text(str(memory_bytes // _TCP_PARTS))
    except OSError:
        # Not re-raised: without root the engine makes the group, and the caller reports it.
        return False
    return True


def can_make_groups(root: Path = _ROOT) -> bool:
    trial = f"trial-{os.getpid()}"
    made = make_lease_groups(trial, LeaseLimits(64 << 20, 8, 100), root)
    remove_lease_groups(trial, root)
    return made is not None


def counts_by_namespace(release: str) -> bool:
    """Only with such a count RLIMIT_NPROC limits one sandbox."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= COUNTING_KERNEL


def lease_counters(lease_id: str, root: Path = _ROOT) -> Counters:
    """Zeros if the kernel or the engine gives none."""
    return _read(
        {name: root / name / PARENT.strip("/") / lease_id for name in ("memory", "cpuacct")},
        root / PARENT.strip("/") / lease_id,
    )


def process_counters(pid: int, root: Path = _ROOT) -> Counters:
    """Reads the groups that a process is in now, for engines that leave groups to systemd."""
    version_1: dict[str, Path] = {}
    version_2 = root / "nowhere"
    with contextlib.suppress(OSError):  # the process has ended: zeros, and an earlier sample counts
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                version_1[name] = root / name / path.lstrip("/")
            if not controllers:
                version_2 = root / path.lstrip("/")
    return _read(version_1, version_2)


def remove_lease_groups(lease_id: str, root: Path = _ROOT) -> None:
    """Removes the lease's empty groups in every hierarchy, and what is in them."""
    below = f"{PARENT.strip('/')}/{lease_id}"
    for group in (root / below, *root.glob(f"*/{below}")):
        # Folders below are removed first. What the kernel or somebody else removes meanwhile is no
        # error, nor a group that an exiting process still uses: an empty group costs nothing.
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def end_lease_groups(lease_id: str, root: Path = _ROOT) -> None:
    """Kills and removes; gives up after some seconds, because a process may hang in the kernel."""
    below = f"{PARENT.strip('/')}/{lease_id}"
    deadline = time.monotonic() + _END_SECONDS
    while groups := [group for group in (root / below, *root.glob(f"*/{below}")) if group.is_dir()]:
        for pid in {int(word) for group in groups for word in _words(group / "cgroup.procs")}:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        remove_lease_groups(lease_id, root)
        if time.monotonic() > deadline:
            return
        time.sleep(_END_POLL_SECONDS)


def _make_version_1(lease_id: str, limits: LeaseLimits, root: Path) -> LeaseGroups:
    """One group per controller. Memory is set first, because the swap limit includes it."""
    quota = limits.cpu_millis * _PERIOD_MICROSECONDS // 1000
    settings: dict[str, Mapping[str, int]] = {
        "memory": {
            "memory.limit_in_bytes": limits.memory_bytes,
            "memory.memsw.limit_in_bytes": limits.memory_bytes,
            _TCP_LIMIT: limits.memory_bytes // _TCP_PARTS,
        },
        "pids": {"pids.max": limits.pids},
        "cpu": {"cpu.cfs_period_us": _PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota},
        "cpuacct": {},
    }
    folders = []
    for controller, files in settings.items():
        if not (root / controller).is_dir():
            continue  # cpuacct may share cpu's hierarchy
        group = root / controller / PARENT.strip("/") / lease_id
        group.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            if (group / name).exists() or name not in _OPTIONAL:
                (group / name).write_text(str(value))
        folders.append(group)
    memory = next(folder for folder in folders if folder.parent.parent.name == "memory")
    return LeaseGroups(tuple(folders), memory / "memory.oom_control")


def _make_version_2(lease_id: str, limits: LeaseLimits, root: Path) -> LeaseGroups:
    """Makes one group for all controllers; its parents must pass the controllers on first."""
    parent = root / PARENT.strip("/")
    parent.mkdir(exist_ok=True)
    for folder in (root, parent):
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _NEEDED))
    group = parent / lease_id
    group.mkdir(exist_ok=True)
    (group / "memory.max").write_text(str(limits.memory_bytes))
    if (group / "memory.swap.max").exists():
        (group / "memory.swap.max").write_text("0")
    (group / "pids.max").write_text(str(limits.pids))
    (group / "cpu.max").write_text(
        f"{limits.cpu_millis * _PERIOD_MICROSECONDS // 1000} {_PERIOD_MICROSECONDS}"
    )
    return LeaseGroups((group,), group / "memory.events")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []  # the group was removed


def _read(version_1: dict[str, Path], version_2: Path) -> Counters:
    nanoseconds = _number(version_1.get("cpuacct", version_2) / "cpuacct.usage")
    peak = _number(version_1.get("memory", version_2) / "memory.max_usage_in_bytes") or _number(
        version_2 / "memory.peak"
    )
    if nanoseconds:
        return Counters(nanoseconds // 1_000_000, peak)
    return Counters(_cpu_stat(version_2 / "cpu.stat") // 1000, peak)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # Control groups of the other version, or an older kernel. Usage is informative; pay follows
        # wall time only.
        return 0


def _cpu_stat(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0  # as in _number
    return next((int(line.split()[1]) for line in lines if line.startswith("usage_usec ")), 0)
