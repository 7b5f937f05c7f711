"""Keeps GPUs back from new jobs while their owner uses them, or while they are too hot.

NVML names each process on a GPU. Jobs run as users of their own (`slot_users`), so every other
process is the owner's. What runs in a lease goes on.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pynvml as nvml
from msgspec import Struct

from quorate_node.executors.base.slot_users import SHOWN_USER

GRAPHICS_BYTES_LEAST = 1 << 30  # of a game; a desktop and its windows take less each
COOL_DEGREES = 5  # below the limit, before a GPU that was too hot takes jobs again
MILLIWATTS = 1000
PROC = Path("/proc")

log = logging.getLogger(__name__)


class GpuUse(Struct, frozen=True):
    """What the driver says of one GPU or partition now. 0 = the GPU does not say it."""

    uuid: str
    pids: tuple[int, ...] = ()  # that compute, or draw with much memory
    celsius: int = 0
    millijoules: int = 0  # since the driver was loaded
    percent: int = 0  # of the newest second in which it computed


def read_use() -> tuple[GpuUse, ...]:
    """Nothing without a driver that answers: the watch of the GPUs reports that."""
    found: list[GpuUse] = []
    try:
        nvml.nvmlInit()
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                found.extend(_uses(index))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        log.debug("GPUs do not say who uses them: %s", error)
    return tuple(found)


def _uses(index: int) -> Iterator[GpuUse]:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return  # not re-raised: it is lost, and the others are there
    celsius = _number(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
    energy = _number(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device))
    percent = _number(lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    yield GpuUse(_text(device), _pids(device), celsius, energy, percent)
    for number in range(_number(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(device))):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)
            yield GpuUse(_text(part), _pids(part), celsius)
        except nvml.NVMLError:
            continue  # not re-raised: there are fewer partitions than there may be


def _pids(handle: object) -> tuple[int, ...]:
    computing = _processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    drawing = _processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    games = [item for item in drawing if (item.usedGpuMemory or 0) >= GRAPHICS_BYTES_LEAST]
    return tuple(sorted({int(item.pid) for item in [*computing, *games]}))


def _processes(
    ask: Callable[[object], list[nvml.c_nvmlProcessInfo_v3_t]], handle: object
) -> list[nvml.c_nvmlProcessInfo_v3_t]:
    try:
        return ask(handle)
    except nvml.NVMLError:
        return []  # not re-raised: this GPU does not say it


def _number(ask: Callable[[], int]) -> int:
    try:
        return int(ask())
    except nvml.NVMLError:
        return 0  # not re-raised: this GPU does not say it


def _text(handle: object) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


@dataclass(slots=True)
class GpuManners:
    """`job_users`: the host's users of this daemon's jobs. `held`: GPUs of running leases, whose
    energy is counted. `max_celsius` 0: any temperature.
    """

    job_users: Collection[int]
    held: Callable[[], frozenset[str]]
    max_celsius: int = 0
    read: Callable[[], tuple[GpuUse, ...]] = read_use
    proc: Path = PROC
    millijoules: int = 0  # of GPUs in leases, since the daemon started
    in_use: frozenset[str] = frozenset()  # by the owner, at the last look
    _hot: set[str] = field(default_factory=set)
    _energy: dict[str, int] = field(default_factory=dict)

    def look(self) -> dict[str, str]:
        """Returns which GPUs take no new job, and why. Blocks for some milliseconds a GPU."""
        uses, held = self.read(), self.held()
        kept: dict[str, str] = {}
        used = {use.uuid: why for use in uses if (why := self._used(use))}
        self.in_use = frozenset(used)
        for use in uses:
            before = self._energy.get(use.uuid, use.millijoules)
            if use.uuid in held:
                self.millijoules += max(0, use.millijoules - before)
            self._energy[use.uuid] = use.millijoules
            if why := self._too_hot(use) or used.get(use.uuid, ""):
                kept[use.uuid] = why
        return kept

    def _too_hot(self, use: GpuUse) -> str:
        limit = self.max_celsius - COOL_DEGREES * (use.uuid in self._hot)
        if not self.max_celsius or use.celsius <= limit:
            self._hot.discard(use.uuid)
            return ""
        self._hot.add(use.uuid)
        cool = self.max_celsius - COOL_DEGREES
        return f"it has more than {self.max_celsius} degrees, and takes jobs again at {cool}"

    def _used(self, use: GpuUse) -> str:
        for pid in use.pids:
            if pid != os.getpid() and (name := self._name_of_owners(pid)):
                return f"your process {pid} ({name}) uses it"
        return ""

    def _name_of_owners(self, pid: int) -> str:
        """Returns "" for a process of a job, or one that has ended."""
        try:
            user = (self.proc / str(pid)).stat().st_uid
            name = (self.proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""
        return "" if user in self.job_users or user == SHOWN_USER else name or "unnamed"


def power_lines(uuids: Collection[str], watts: int, *, may_set: bool) -> list[str]:
    """Limits the power of GPUs. Returns a line for each that draws more still: setting the limit
    needs root.
    """
    lines = []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []  # not re-raised: without a driver no GPU is on offer
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            lines += _limit(index, uuids, watts, may_set)
    finally:
        nvml.nvmlShutdown()
    return lines


def _limit(index: int, uuids: Collection[str], watts: int, may_set: bool) -> list[str]:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, limit = _text(device), nvml.nvmlDeviceGetPowerManagementLimit(device)
        if uuid not in uuids or limit <= watts * MILLIWATTS:
            return []
        why = "type"
        if may_set:
            try:
                nvml.nvmlDeviceSetPowerManagementLimit(device, watts * MILLIWATTS)
                return []
            except nvml.NVMLError as error:
                why = f"setting it failed ({error}): type"
    except nvml.NVMLError:
        return []  # not re-raised: this GPU has no such limit, or is lost
    return [
        f"{uuid} may draw {limit // MILLIWATTS} W; {why} `sudo nvidia-smi -i {uuid} -pl {watts}`"
    ]
