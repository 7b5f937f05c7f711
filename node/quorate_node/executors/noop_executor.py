"""Runs nothing, for tests. The exit and one output file follow from the task alone.

Equal tasks give equal results, and different tasks give different ones.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate_node.executors.base.lease import check_lease_id
from quorate_node.executors.base.outputs import OutputCaps, collect_tree, delete_tree
from quorate_protocol.messages.ports import (
    Clock,
    Exit,
    LogPiece,
    RegistryLogin,
    Sandbox,
    Task,
    TaskState,
    Usage,
)
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import EXIT_SIGNAL_BASE, EXIT_TIMEOUT, Milliseconds

OUTPUT_NAME = "result.txt"
_SIGTERM = 15


@dataclass
class NoopExecutor:
    """`Executor` whose tasks take `duration_ms` by the clock. Survives a restart."""

    sandbox = Sandbox.NOOP
    has_volumes = True

    home: Path
    clock: Clock
    duration_ms: int = 0

    async def check(self) -> None: ...

    async def fetch_image(
        self,
        lease_id: str,
        name: str,
        deadline_seconds: float,
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None: ...

    def image_requirement(self, name: str) -> str:
        return ""

    async def start(self, task: Task) -> None:
        check_lease_id(task.lease_id, "a folder")
        if isinstance(task.image, Path) and not task.image.is_file():
            raise Refused(Code.UNKNOWN, f"image: no archive {task.image.name}")
        if self._record(task.lease_id) is not None:
            return
        folder = self.home / task.lease_id
        delete_tree(folder)
        (folder / "outputs").mkdir(parents=True)
        (folder / "outputs" / OUTPUT_NAME).write_text(output_of(task))
        wall_ms = min(self.duration_ms, task.max_duration * 1000)
        status = int(EXIT_TIMEOUT) if self.duration_ms >= task.max_duration * 1000 else 0
        self._write(
            task.lease_id,
            {
                "status": status,
                "wall_ms": wall_ms,
                "started": self.clock.now(),
                "ends": self.clock.now() + wall_ms / 1000,
                "bytes": task.output_bytes,
                "inodes": task.output_inodes,
            },
        )

    async def state(self, lease_id: str) -> TaskState:
        record = self._record(lease_id)
        if record is None:
            return TaskState.ABSENT
        return TaskState.EXITED if self.clock.now() >= record["ends"] else TaskState.RUNNING

    async def wait(self, lease_id: str) -> Exit:
        while (record := self._held(lease_id)) and self.clock.now() < record["ends"]:
            await self.clock.sleep(min(1.0, max(0.001, record["ends"] - self.clock.now())))
        return Exit(int(record["status"]), Usage(Milliseconds(int(record["wall_ms"]))))

    async def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        self._held(lease_id)
        yield LogPiece(at, b"nothing ran\n"[at:])

    async def collect(self, lease_id: str, destination: Path) -> None:
        record = self._held(lease_id)
        collect_tree(
            self.home / lease_id / "outputs",
            destination,
            OutputCaps(int(record["bytes"]), int(record["inodes"])),
        )

    async def stop(self, lease_id: str) -> None:
        record = self._record(lease_id)
        if record is not None and self.clock.now() < record["ends"]:
            elapsed = round((self.clock.now() - record["started"]) * 1000)
            self._write(
                lease_id,
                {
                    **record,
                    "status": EXIT_SIGNAL_BASE + _SIGTERM,
                    "wall_ms": elapsed,
                    "ends": self.clock.now(),
                },
            )

    async def remove(self, lease_id: str) -> None:
        delete_tree(self.home / lease_id)

    async def leases(self) -> Sequence[str]:
        return sorted(path.name for path in self.home.iterdir()) if self.home.is_dir() else []

    async def close(self) -> None: ...

    def _held(self, lease_id: str) -> dict[str, float]:
        record = self._record(lease_id)
        if record is None:
            raise Unavailable(f"lease {lease_id} was never started")
        return record

    def _record(self, lease_id: str) -> dict[str, float] | None:
        try:
            record: dict[str, float] = json.loads(
                (self.home / lease_id / "record.json").read_text()
            )
        except FileNotFoundError:
            return None  # never started
        return record

    def _write(self, lease_id: str, record: dict[str, float]) -> None:
        fresh = self.home / lease_id / "record.json.new"
        fresh.write_text(json.dumps(record))
        fresh.rename(fresh.with_name("record.json"))


def output_of(task: Task) -> str:
    """Without host paths, so that every provider gets the same."""
    seen = [
        list(task.argv),
        sorted(task.env.items()),
        [mount.target for mount in task.mounts],
        Path(task.image).name,
    ]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest() + "\n"
