"""CPU time and peak memory of a lease, read from the kernel's control groups (v1, v2 and the hybrid of both).

Each container gets a parent group of its own, named by the lease: the engine removes the container's group at exit, and with it the
counters, but never the parent, whose counters include the child's. So the figures are exact for the shortest job and survive a
restart of the daemon. An engine that leaves groups to systemd gives no such parent; then a running container is sampled.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

PARENT = "/quorate"
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counted so far."""

    cpu_ms: int = 0
    peak_memory_bytes: int = 0

    def at_least(self, other: "Counters") -> "Counters":
        """Both figures only grow, so of two samples the larger is the newer."""
        return Counters(max(self.cpu_ms, other.cpu_ms), max(self.peak_memory_bytes, other.peak_memory_bytes))


def lease_counters(lease_id: str, root: Path = _ROOT) -> Counters:
    """Counters of the lease's parent group; zeros where the kernel or the engine's set-up does not give them."""
    return _read({name: root / name / PARENT.strip("/") / lease_id for name in ("memory", "cpuacct")}, root / PARENT.strip("/") / lease_id)


def process_counters(pid: int, root: Path = _ROOT) -> Counters:
    """Counters of the groups that a process is in now, for engines that leave groups to systemd."""
    version_1: dict[str, Path] = {}
    version_2 = root / "nowhere"
    with contextlib.suppress(OSError):  # the process has ended: zeros, and an earlier sample stands
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                version_1[name] = root / name / path.lstrip("/")
            if not controllers:
                version_2 = root / path.lstrip("/")
    return _read(version_1, version_2)


def remove_lease_groups(lease_id: str, root: Path = _ROOT) -> None:
    """Removes the lease's empty parent groups in every hierarchy."""
    below = f"{PARENT.strip('/')}/{lease_id}"
    for group in (root / below, *root.glob(f"*/{below}")):
        with contextlib.suppress(OSError):  # gone, or still in use by an exiting process: an empty group costs nothing
            group.rmdir()


def _read(version_1: dict[str, Path], version_2: Path) -> Counters:
    nanoseconds = _number(version_1.get("cpuacct", version_2) / "cpuacct.usage")
    peak = _number(version_1.get("memory", version_2) / "memory.max_usage_in_bytes") or _number(version_2 / "memory.peak")
    if nanoseconds:
        return Counters(nanoseconds // 1_000_000, peak)
    return Counters(_cpu_stat(version_2 / "cpu.stat") // 1000, peak)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0  # not this version of control groups, or an older kernel: usage is informative, only wall time is paid


def _cpu_stat(path: Path) -> int:
    """Microseconds of CPU time of a version 2 group."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0  # as in _number
    return next((int(line.split()[1]) for line in lines if line.startswith("usage_usec ")), 0)
