"""Reads the machine's GPUs by NVML, and watches which of them the driver still lists."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pynvml as nvml

from quorate_node.core import events
from quorate_node.core.events import EventSink
from quorate_node.machine.gpu_manners import GpuManners
from quorate_protocol.messages.gpu_inventory import (
    DEVICES_MAX,
    PARTITIONS_MAX,
    TEXT_MAX,
    GpuDevice,
    GpuInventory,
    GpuPath,
    MigPartition,
)
from quorate_protocol.messages.ports import Clock, GpuProbe
from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.health import Board

log = logging.getLogger(__name__)

T = TypeVar("T")
NVLINKS_MAX = 36
MIB = 1 << 20
_PATH_OF_LEVEL = {
    nvml.NVML_TOPOLOGY_INTERNAL: "pcie-switch",
    nvml.NVML_TOPOLOGY_SINGLE: "pcie-switch",
    nvml.NVML_TOPOLOGY_MULTIPLE: "pcie-switch",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "host-bridge",
    nvml.NVML_TOPOLOGY_NODE: "cpu-socket",
}
_ABSENT = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
_GONE = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND)
RETRY_SECONDS = 30.0


class NvmlProbe:
    """Implements `GpuProbe` with nvidia-ml-py. The calls block for some milliseconds a GPU."""

    def inventory(self) -> GpuInventory:
        """None without a driver. Raises Unavailable if a driver is there and does not work."""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if error.value in _ABSENT:
                return GpuInventory()
            raise _unavailable(error) from error
        try:
            return _read()
        except nvml.NVMLError as error:
            raise _unavailable(error) from error
        finally:
            nvml.nvmlShutdown()


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(
        f"NVIDIA driver: {error}; look at `nvidia-smi` and the kernel's log", RETRY_SECONDS
    )


def _read() -> GpuInventory:
    found = []
    for index in range(min(DEVICES_MAX, nvml.nvmlDeviceGetCount())):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append((handle, _device(handle)))
        except nvml.NVMLError as error:
            if error.value not in _GONE:
                raise
            log.warning("GPU %d is left out: %s", index, error)
    handles = [handle for handle, _ in found]
    paths = tuple(
        GpuPath(first, second, _path(handles[first], handles[second]))
        for first in range(len(handles))
        for second in range(first + 1, len(handles))
    )
    cuda = _or_default(nvml.nvmlSystemGetCudaDriverVersion_v2, 0)
    return GpuInventory(
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        devices=tuple(device for _, device in found),
        paths=paths,
    )


def _device(handle: object) -> GpuDevice:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    capability = f"{major}.{minor}"
    cores = _or_default(lambda: nvml.nvmlDeviceGetNumGpuCores(handle), 0)
    modes = _or_default(lambda: nvml.nvmlDeviceGetMigMode(handle), [0, 0])
    is_mig_enabled = bool(modes[0])
    return GpuDevice(
        model=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        vram_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        sm_count=cores // cores_per_sm(capability),
        compute_capability=capability,
        pci_address=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        pcie_generation=_or_default(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), 0),
        pcie_lanes=_or_default(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), 0),
        nvlinks=sum(_is_link_active(handle, link) for link in range(NVLINKS_MAX)),
        is_mig_enabled=is_mig_enabled,
        partitions=_partitions(handle) if is_mig_enabled else (),
    )


def cores_per_sm(capability: str) -> int:
    """By compute capability: CUDA C++ Programming Guide, "Compute Capabilities", FP32 cores."""
    return 64 if capability.startswith("7.") or capability == "8.0" else 128


def _partitions(handle: object) -> tuple[MigPartition, ...]:
    count = _or_default(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)
    found = (_partition(handle, index) for index in range(min(PARTITIONS_MAX, count)))
    return tuple(partition for partition in found if partition is not None)


def _partition(handle: object, index: int) -> MigPartition | None:
    part = _or_default(lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), None)
    if part is None:
        return None
    attributes = nvml.nvmlDeviceGetAttributes_v2(part)
    return MigPartition(
        uuid=_text(nvml.nvmlDeviceGetUUID(part)),
        profile=_text(nvml.nvmlDeviceGetName(part)).rpartition("MIG ")[2],
        sm_count=int(attributes.multiprocessorCount),
        vram_bytes=int(attributes.memorySizeMB) * MIB,
    )


def _is_link_active(handle: object, link: int) -> bool:
    return bool(_or_default(lambda: nvml.nvmlDeviceGetNvLinkState(handle, link), 0))


def _path(first: object, second: object) -> str:
    linked = _or_default(
        lambda: nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
        nvml.NVML_P2P_STATUS_UNKNOWN,
    )
    if linked == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    level = _or_default(
        lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, second), nvml.NVML_TOPOLOGY_SYSTEM
    )
    return _PATH_OF_LEVEL.get(level, "system")


def _or_default(ask: Callable[[], T], default: T) -> T:
    """The default if this GPU or driver does not support the call."""
    try:
        return ask()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return default  # not re-raised: the figure is optional


def _text(value: str | bytes) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else value)[:TEXT_MAX]


LOOK_SECONDS = 10.0
TRIES = 3  # of a driver that does not answer, before its GPUs count as gone
ASK_AGAIN_SECONDS = 1.0
REMEDY = "look at `nvidia-smi` and the kernel's log, and restart the machine"


@dataclass(slots=True)
class GpuWatch:
    """Submits which GPUs the driver lists: at the start, every few seconds, and after each task.

    A GPU can fall off its bus while a job runs, whose result must then not be committed. So a task
    that had GPUs is reported as ended only after the driver was asked once more.
    """

    probe: GpuProbe
    actor: EventSink
    clock: Clock
    board: Board
    named: Callable[[], frozenset[str]]  # the offered ones; the owner is told of those gone
    manners: GpuManners | None = None
    kept_back: dict[str, str] = field(default_factory=dict)  # of the offered ones: why
    _listed: frozenset[str] | None = None  # as submitted last
    _used: frozenset[str] = frozenset()  # by the owner, as submitted last
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        while True:
            await self.clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Returns when the journal has what has changed."""
        async with self._turn:
            listed, kept = uuids_of(await self._inventory()), await self._kept_back()
            used = self.manners.in_use & kept.keys() if self.manners else frozenset()
            is_same = kept.keys() == self.kept_back.keys() and used == self._used
            if listed == self._listed and is_same:
                return
            self._tell(listed)
            for uuid in kept.keys() ^ self.kept_back.keys():
                log.info("GPU %s: %s", uuid, kept.get(uuid, "takes jobs again"))
            seen = events.GpusRead(*(tuple(sorted(each)) for each in (listed, kept, used)))
            await self.actor.submit(seen)
            self._listed, self.kept_back, self._used = listed, kept, used

    async def _kept_back(self) -> dict[str, str]:
        if self.manners is None:
            return {}
        found = await asyncio.to_thread(self.manners.look)
        return {uuid: why for uuid, why in found.items() if uuid in self.named()}

    async def _inventory(self) -> GpuInventory:
        """Nothing if the driver does not answer several times in a row."""
        for _ in range(TRIES):
            try:
                return await asyncio.to_thread(self.probe.inventory)
            except Unavailable as error:
                # Not re-raised: after the last try the GPUs count as gone.
                log.warning("GPUs: %s", error)
            await self.clock.sleep(ASK_AGAIN_SECONDS)
        return GpuInventory()

    def _tell(self, listed: frozenset[str]) -> None:
        gone = sorted(self.named() - listed)
        if not gone:
            self.board.put("gpu")
            return
        text = f"GPU {', '.join(gone)} is gone and is not offered; {REMEDY}"
        log.error("%s", text)
        self.board.put("gpu", text)


def uuids_of(inventory: GpuInventory) -> frozenset[str]:
    """UUIDs of all GPUs and partitions of an inventory."""
    whole = frozenset(device.uuid for device in inventory.devices)
    return whole | {part.uuid for device in inventory.devices for part in device.partitions}
