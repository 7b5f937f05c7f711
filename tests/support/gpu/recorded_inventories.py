"""Recorded GPU inventories, and a library that reports them in the place of NVIDIA's."""

import os
import subprocess
import sys
from pathlib import Path

from quorate_node.machine.nvml_probe import cores_per_sm
from quorate_protocol.codec import canonical
from quorate_protocol.messages.gpu_inventory import GpuDevice, GpuInventory

HERE = Path(__file__).parent
FOLDER = HERE / "inventories"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
LEVELS = {"pcie-switch": 10, "host-bridge": 30, "cpu-socket": 40, "system": 50}
DRIVER_NOT_LOADED, UNKNOWN_ERROR = 9, 999
ASK = (
    "import sys; from quorate_node.machine.nvml_probe import NvmlProbe; "
    "sys.stdout.buffer.write(NvmlProbe().inventory().encode())"
)


def recorded(name: str) -> GpuInventory:
    """The inventory of `inventories/NAME.json`."""
    tree = canonical.loads((FOLDER / f"{name}.json").read_bytes())
    return canonical.from_json(GpuInventory, tree)


class RecordedProbe:
    """Implements `GpuProbe` with a recorded inventory."""

    def __init__(self, inventory: GpuInventory) -> None:
        self._inventory = inventory

    def inventory(self) -> GpuInventory:
        """The recorded inventory."""
        return self._inventory


class FakeLibraryProbe:
    """Implements `GpuProbe` with `NvmlProbe` over the fake library, in a process of its own."""

    def __init__(
        self,
        inventory: GpuInventory,
        folder: Path,
        lost: frozenset[str] = frozenset(),
        result: int = 0,
    ) -> None:
        """Compiles the library. `lost` are UUIDs; `result` is NVML's answer to its start."""
        self._folder = folder
        use = f'#define USE_FILE "{folder / "use"}"\n'
        (folder / "inventory.h").write_text(use + _header(inventory, lost, result))
        library = folder / "libnvidia-ml.so.1"
        flags = ["-shared", "-fPIC", "-O1", "-w", f"-I{folder}", "-o", str(library)]
        subprocess.run(["cc", *flags, str(HERE / "fake_nvml.c")], check=True)

    def inventory(self) -> GpuInventory:
        """What `NvmlProbe` finds. Raises CalledProcessError if it raises."""
        return canonical.decode(GpuInventory, self.ask(ASK))

    def ask(self, program: str) -> bytes:
        """Runs a program that talks to the library, and returns what it writes."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(self._folder)},
        )
        return done.stdout

    def use(self, *lines: str) -> None:
        """Sets what changes on the GPUs: "DEVICE KIND VALUE MORE", see fake_nvml.c."""
        (self._folder / "use").write_text("\n".join(lines))


def _header(inventory: GpuInventory, lost: frozenset[str], result: int) -> str:
    count = len(inventory.devices)
    major, _, minor = (inventory.cuda_version or "0.0").partition(".")
    levels = [[50] * count for _ in range(count)]
    linked = [[0] * count for _ in range(count)]
    for path in inventory.paths:
        for one, other in ((path.first, path.second), (path.second, path.first)):
            linked[one][other] = int(path.kind == "nvlink")
            levels[one][other] = LEVELS.get(path.kind, 50)
    rows = ",\n".join(_row(device, device.uuid in lost) for device in inventory.devices)
    return "\n".join(
        [
            f'#define DRIVER_VERSION "{inventory.driver_version}"',
            f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}",
            f"#define INIT_RESULT {result}",
            f"#define DEVICE_COUNT {count}",
            f"static Device devices[{max(1, count)}] = {{{rows}}};",
            _table("levels", levels),
            _table("linked", linked),
        ]
    )


def _row(device: GpuDevice, is_lost: bool) -> str:
    major, _, minor = device.compute_capability.partition(".")
    cores = device.sm_count * cores_per_sm(device.compute_capability)
    parts = ", ".join(
        f'{{"{part.uuid}", "{part.profile}", {part.sm_count}, {part.vram_bytes}ull}}'
        for part in device.partitions
    )
    numbers = [cores, major, minor, device.pcie_generation, device.pcie_lanes, device.nvlinks]
    numbers += [int(device.is_mig_enabled), int(is_lost), len(device.partitions)]
    return (
        f'{{"{device.model}", "{device.uuid}", "{device.pci_address}", {device.vram_bytes}ull, '
        f"{', '.join(str(number) for number in numbers)}, {{{parts}}}}}"
    )


def _table(name: str, rows: list[list[int]]) -> str:
    side = max(1, len(rows))
    inner = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows)
    return f"static unsigned {name}[{side}][{side}] = {{{inner}}};"
