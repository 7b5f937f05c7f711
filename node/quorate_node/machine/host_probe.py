"""Finds the hardware properties that decide the bits of a result.

It reads the CPU as a program inside the sandbox sees it, and the GPUs as the driver
reports them. Flags of each x86-64 level: https://gitlab.com/x86-psABIs/x86-64-ABI
(micro-architecture levels).
"""

import logging
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from quorate_attestation.catalogue import other_hardware
from quorate_node.base.config import Settings
from quorate_protocol.messages.classes import CPU_LEVELS, GVISOR, Host
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.offer import Gpu, Hardware
from quorate_protocol.messages.ports import GpuProbe, Sandbox
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.values import replace

log = logging.getLogger(__name__)

V2_FLAGS = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
V3_FLAGS = V2_FLAGS | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4_FLAGS = V3_FLAGS | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
PCI_DEVICES = Path("/sys/bus/pci/devices")
LEVELS = (("v4", V4_FLAGS), ("v3", V3_FLAGS), ("v2", V2_FLAGS))


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The first processor of /proc/cpuinfo: vendor, model name and flags.

    Containers see the same file as the host.
    """

    vendor: str
    model: str
    flags: frozenset[str]


def read_cpuinfo(text: str) -> CpuInfo:
    first = text.split("\n\n", 1)[0]
    rows = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    flags = rows.get("flags") or rows.get("Features", "")
    return CpuInfo(rows.get("vendor_id", ""), rows.get("model name", ""), frozenset(flags.split()))


def cpu_host(machine: str, cpu: CpuInfo) -> Host:
    if machine in ("aarch64", "arm64"):
        return Host("aarch64", "armv8")
    return Host(
        "x86_64", next((name for name, needed in LEVELS if needed <= cpu.flags), CPU_LEVELS[0])
    )


def detect_host(sandbox: Sandbox | None = None, settings: Settings | None = None) -> Host:
    """The host of CPU slots. gVisor is a kernel with other results. An owner may choose a lower
    level, so that libraries run as on older CPUs.
    """
    level_max = settings.cpu_level if settings is not None else ""
    found = cpu_host(
        platform.machine(), read_cpuinfo(Path("/proc/cpuinfo").read_text(errors="replace"))
    )
    if level_max and found.architecture == "x86_64":
        found = replace(found, level=min(found.level, level_max))
    return replace(found, sandbox=GVISOR if sandbox is Sandbox.DOCKER_RUNSC else "")


def detect_hardware(disk: Path, inventory: GpuInventory) -> Hardware:
    """Returns the cores that this process may use, memory, free disk below `disk`, and GPUs."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    place = os.statvfs(disk)
    gpus = tuple(
        Gpu(device.model, device.uuid, device.vram_bytes, inventory.driver_version)
        for device in inventory.devices
    )
    free = place.f_bavail * place.f_frsize
    return Hardware(len(os.sched_getaffinity(0)), pages * page, free, gpus)


def read_gpus(probe: GpuProbe) -> GpuInventory:
    """None without a working driver, or if its report contradicts itself: a GPU listed four times
    would be four slots.
    """
    try:
        found = probe.inventory()
        found.validate()
        return found
    except (Unavailable, Refused) as error:
        # Not re-raised: CPU slots can be offered without GPUs.
        log.warning("no GPUs: %s", error)
        return GpuInventory()


def read_other_hardware(folder: Path = PCI_DEVICES) -> tuple[str, ...]:
    """Says of each kind of accelerator without GPU slots what runs on it."""
    found = []
    for device in sorted(folder.glob("*")):
        try:
            vendor, number = ((device / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue  # not re-raised: a device that is unplugged meanwhile is not there
        found.append(other_hardware(f"{vendor[2:]}:{number[2:]}"))
    return tuple(dict.fromkeys(said for said in found if said))
