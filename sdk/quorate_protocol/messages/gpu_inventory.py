"""The GPUs of one machine as its driver reports them (attestation level 0).

A driver's report can be forged on the machine. It describes GPUs for matching and proves nothing;
attestation level 1 measures them.
"""

from msgspec import Struct

from quorate_protocol.messages.document import Document
from quorate_protocol.refusals import Code, Refused

DEVICES_MAX = 64
PARTITIONS_MAX = 8  # MIG partitions of one GPU
TEXT_MAX = 96  # characters of a name, a UUID or a version
PATHS = ("nvlink", "pcie-switch", "host-bridge", "cpu-socket", "system")
"""How two GPUs reach each other, the fastest first.

`nvlink` is NVLink, also through an NVSwitch. The others are PCIe: below one switch or several,
below one host bridge, below one CPU socket, or across sockets.
"""


class MigPartition(Struct, frozen=True):
    """One MIG partition of a GPU, which a job can use like a GPU."""

    uuid: str  # "MIG-..."
    profile: str  # for example "1g.10gb"
    sm_count: int
    vram_bytes: int


class GpuDevice(Struct, frozen=True):
    """One GPU."""

    model: str  # the driver's name, for example "NVIDIA H100 80GB HBM3"
    uuid: str  # "GPU-..."
    vram_bytes: int
    sm_count: int  # streaming multiprocessors; 0 if the driver does not say
    compute_capability: str  # for example "9.0"
    pci_address: str  # for example "00000000:41:00.0"
    pcie_generation: int  # the highest that GPU and machine support; 0 = unknown
    pcie_lanes: int  # the most that GPU and machine support; 0 = unknown
    nvlinks: int  # count of active NVLink connections
    is_mig_enabled: bool  # if so, jobs can use only the partitions
    partitions: tuple[MigPartition, ...] = ()


class GpuPath(Struct, frozen=True):
    """The fastest path between two GPUs, by their places in `GpuInventory.devices`."""

    first: int
    second: int  # larger than `first`
    kind: str  # one of PATHS


class GpuInventory(Document, frozen=True):
    """All GPUs of one machine, in the driver's order, and the paths between them."""

    driver_version: str = ""  # for example "550.54.15"; "" without a driver
    cuda_version: str = ""  # the newest CUDA that the driver supports, for example "12.4"
    devices: tuple[GpuDevice, ...] = ()
    paths: tuple[GpuPath, ...] = ()  # one for each pair, in order
    version: int = 1

    def validate(self) -> None:
        count = len(self.devices)
        if self.version != 1 or count > DEVICES_MAX or len(self.paths) > count * (count - 1) // 2:
            raise Refused(
                Code.MALFORMED,
                f"inventory: it needs version 1, at most {DEVICES_MAX} devices, a path a pair",
            )
        uuids = [uuid for device in self.devices for uuid in _uuids(device)]
        if len(set(uuids)) != len(uuids):
            raise Refused(Code.MALFORMED, "inventory: devices: a UUID occurs twice")
        for device in self.devices:
            _validate_device(device)
        for path in self.paths:
            if not 0 <= path.first < path.second < count or path.kind not in PATHS:
                raise Refused(Code.MALFORMED, "inventory: paths: name two devices and a known kind")


def _uuids(device: GpuDevice) -> list[str]:
    return [device.uuid, *(partition.uuid for partition in device.partitions)]


def _validate_device(device: GpuDevice) -> None:
    texts = [device.model, device.compute_capability, device.pci_address, *_uuids(device)]
    texts += [partition.profile for partition in device.partitions]
    numbers = [device.vram_bytes, device.sm_count, device.pcie_generation, device.pcie_lanes]
    numbers += [number for part in device.partitions for number in (part.sm_count, part.vram_bytes)]
    is_bounded = (
        all(len(text) <= TEXT_MAX for text in texts)
        and all(number >= 0 for number in [*numbers, device.nvlinks])
        and len(device.partitions) <= PARTITIONS_MAX
        and device.uuid != ""
    )
    if not is_bounded:
        raise Refused(
            Code.MALFORMED,
            f"inventory: devices: each needs a UUID, texts of at most {TEXT_MAX} characters and "
            f"at most {PARTITIONS_MAX} partitions",
        )
