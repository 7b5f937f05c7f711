"""Measures a soak from outside: memory, folder sizes, metrics, and rows of the state."""

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import msgpack

from quorate_runtime.journal import journal_files

MB = 1 << 20
LOOKED_AT_BYTES_MAX = 32 * MB
REFUSED_LINE = re.compile(r'^quorate_refused_total\{code="([^"]+)"\} (\d+)', re.MULTILINE)


def rss_mb(pid: int) -> float | None:
    """Resident memory; None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it was killed between two readings
    found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else None


def folder_mb(folder: Path) -> float:
    """Bytes that its files take on disk."""
    total = 0
    for folder_name, _, names in os.walk(folder):  # a folder that is removed meanwhile is skipped
        for name in names:
            try:
                total += os.lstat(os.path.join(folder_name, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # renamed or removed during the reading
    return total / MB


def parts_mb(folder: Path) -> dict[str, float]:
    """Megabytes of each file and folder directly below a folder."""
    sizes = {
        path.name: folder_mb(path) if path.is_dir() else path.stat().st_size / MB
        for path in folder.iterdir()
    }
    return {
        name: round(size, 2)
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])
        if size >= 0.1
    }


def slope(points: list[tuple[float, float]]) -> float:
    """Growth of a value per minute: least squares over (seconds, value); 0 for fewer than two
    points.
    """
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def quantile(values: list[float], share: float) -> float:
    """A quantile of unsorted values; 0 for none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))] if ranked else 0.0


@dataclass(slots=True)
class ProcessRuns:
    """Points of one value, kept apart for each run of a process."""

    lives: list[list[tuple[float, float]]] = field(default_factory=lambda: [[]])

    def add(self, at: float, value: float | None) -> None:
        """Adds a point."""
        if value is not None:
            self.lives[-1].append((at, value))

    def restarted(self) -> None:
        """Starts a new run."""
        self.lives.append([])

    def warm(self, from_second: float) -> list[tuple[float, float]]:
        """Points of the longest run, from that second of the soak on."""
        longest = max(self.lives, key=lambda life: life[-1][0] - life[0][0] if life else 0.0)
        return [point for point in longest if point[0] >= from_second]


@dataclass(slots=True)
class Refusals:
    """Refusals by code, summed over a coordinator's restarts, each of which resets its counters."""

    before: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)

    def read(self, metrics: str) -> None:
        """Reads the coordinator's metrics."""
        self.now = Counter({code: int(count) for code, count in REFUSED_LINE.findall(metrics)})

    def restarted(self) -> None:
        """Notes that its counters are zero again."""
        self.before += self.now
        self.now = Counter()

    def total(self) -> dict[str, int]:
        """Sums over all runs."""
        return dict(sorted((self.before + self.now).items()))


def tables(journal: Path) -> dict[str, tuple[int, int]]:
    """(rows, bytes) of each table in the newest snapshot, largest first.

    Empty when there is no snapshot yet, or it is too large to read.
    """
    snapshot = journal_files.read_snapshot(journal)
    if snapshot is None or len(snapshot.payload) > LOOKED_AT_BYTES_MAX:
        return {}
    found = msgpack.decode(snapshot.payload[8:], type=dict[str, msgspec.Raw])
    sizes = {
        name: (len(msgpack.decode(rows, type=list[msgspec.Raw])), len(rows))
        for name, rows in found.items()
    }
    return dict(
        sorted(
            ((name, size) for name, size in sizes.items() if size[0]), key=lambda item: -item[1][1]
        )
    )
