"""`quorate node selftest --gpu`: tries whether jobs of others would run on this machine's GPUs.

Each step ends with what it found or with a remedy, so that a report says what to do. A report is
what the first people with a new kind of hardware send; a test can then have their inventory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from quorate_attestation.challenge import STAGES
from quorate_attestation.parameters import Parameters
from quorate_attestation.provers.cuda_device import open_gpu
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.kernel_engine import KernelEngine
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_attestation.provers.prover import Prover
from quorate_node.machine.host_probe import PCI_DEVICES, read_other_hardware
from quorate_node.status.gpu_container import LIST_GPUS, TOOLKIT, check_listed, run_in_container
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.messages.determinism import PROFILES, TORCH
from quorate_protocol.messages.gpu_inventory import GpuDevice, GpuInventory
from quorate_protocol.messages.ports import Clock, Executor, GpuProbe
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.version import version_number

CHECKED = Parameters(
    order=256, rounds=2, tiles=24, pages=512, page_rounds=2, chains=256, batches=2, chains_opened=8
)
# CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Versions": CUDA -> branch.
BRANCH_MIN = {12: 525, 13: 580}
_INSTALL = "install NVIDIA's driver of branch 525 or newer, load it, and look at `nvidia-smi`"
_RUNTIME = f"{TOOLKIT}; or name an image that has Python and glibc with --image"
_KERNELS = "pip install 'quorate[cuda12]'; then look at the kernel's log (`dmesg | grep -i xid`)"
_NONE = "offer this machine's CPUs: `quorate node init`"
_BITS = "take this GPU out of work, and test its memory, cooling and power supply"
Sandboxes = Callable[[], AbstractAsyncContextManager[Sequence[Executor]]]


class Step(Struct, frozen=True):
    """One thing that was tried. `remedy` is "" if it is good."""

    name: str
    ok: bool
    seconds: float
    detail: str
    remedy: str


class OtherBits(Exception):
    """A GPU computed other values than it should; no installation helps."""


class OtherHardware(Exception):
    """There is an accelerator that no job can use."""


class Bench(Struct, frozen=True):
    """What the self-test tries. Tests give it recorded GPUs and a sandbox that runs nothing."""

    probe: GpuProbe
    sandboxes: Sandboxes
    clock: Clock
    image: Callable[[], Awaitable[Path | str]]  # fetches it, and names it by its digest
    folder: Path
    engine: Callable[[str], Engine] = lambda uuid: KernelEngine(open_gpu(uuid))
    pci: Path = PCI_DEVICES


class Report(Struct, frozen=True):
    """All steps, in the order in which they were tried."""

    steps: tuple[Step, ...]
    inventory: GpuInventory

    @property
    def is_good(self) -> bool:
        return all(step.ok for step in self.steps)

    def to_json(self) -> canonical.Json:
        """The document that people send."""
        return {
            "version": 1,
            "program": version_number(),
            "ok": self.is_good,
            "steps": [asdict(step) for step in self.steps],
            "profile": {"name": TORCH, "digest": f"0x{PROFILES[TORCH].digest().hex()}"},
            "inventory": canonical.to_json(self.inventory),
        }


async def selftest(bench: Bench) -> Report:
    """Tries each step. Later ones are not tried without a GPU."""
    found: list[GpuInventory] = []

    async def read() -> str:
        found.append(await asyncio.to_thread(_inventory, bench))
        return _shown(found[0])

    first = await _tried(bench, "inventory", read, _INSTALL)
    if not first.ok:
        later = ("driver", "container", "kernels", "reference")
        missed = (
            Step(name, False, 0.0, "not tried: there is no GPU", first.remedy) for name in later
        )
        return Report((first, *missed), GpuInventory())
    inventory = found[0]
    return Report(
        (
            first,
            await _tried(bench, "driver", lambda: _driver(inventory), _INSTALL),
            await _tried(bench, "container", lambda: _container(bench, inventory), _RUNTIME),
            await _tried(bench, "kernels", lambda: _kernels(bench, inventory), _KERNELS),
            await _tried(bench, "reference", lambda: _reference(bench, inventory), _RUNTIME),
        ),
        inventory,
    )


async def _tried(bench: Bench, name: str, work: Callable[[], Awaitable[str]], remedy: str) -> Step:
    began = bench.clock.now()
    try:
        is_good, detail = True, await work()
    except Exception as error:  # noqa: BLE001 - drivers have many errors, and each is a result
        known_remedy = {OtherBits: _BITS, OtherHardware: _NONE}
        is_good, remedy = False, known_remedy.get(type(error), remedy)
        known = error.detail if isinstance(error, Refused) else str(error)
        detail = known or type(error).__name__
    seconds = round(max(0.0, bench.clock.now() - began), 3)
    return Step(name, is_good, seconds, detail, "" if is_good else remedy)


def _inventory(bench: Bench) -> GpuInventory:
    found = bench.probe.inventory()
    found.validate()
    others = () if found.devices else read_other_hardware(bench.pci)
    if others:
        raise OtherHardware(f"there is no GPU that jobs can use. {'. '.join(others)}")
    if not found.devices:
        raise Unavailable("there is no GPU: NVIDIA's driver is not installed, or lists none", 0)
    return found


def _shown(inventory: GpuInventory) -> str:
    """Such as "4 GPUs (NVIDIA GeForce RTX 4090), driver 550.54.15, CUDA 12.4"."""
    models = ", ".join(sorted({device.model for device in inventory.devices}))
    count = len(inventory.devices)
    return (
        f"{count} GPU{'s' * (count > 1)} ({models}), driver {inventory.driver_version}, "
        f"CUDA {inventory.cuda_version}"
    )


async def _driver(inventory: GpuInventory) -> str:
    """Whether driver and CUDA fit each other, and are new enough for jobs and for our kernels."""
    branch = inventory.driver_version.partition(".")[0]
    major = inventory.cuda_version.partition(".")[0]
    if not (branch.isdecimal() and major.isdecimal()):
        raise Unavailable("the driver does not say its version, or the CUDA that it supports", 0)
    least = BRANCH_MIN.get(int(major), max(BRANCH_MIN.values()))
    if int(major) < min(BRANCH_MIN):
        raise Unavailable(f"driver {branch} supports CUDA {major}; jobs need CUDA 12 or newer", 0)
    if int(branch) < least:
        raise Unavailable(
            f"driver {branch} says that it supports CUDA {major}, which needs branch {least}: "
            "its parts are of two versions",
            0,
        )
    return f"branch {branch} supports CUDA {inventory.cuda_version}"


def usable(device: GpuDevice) -> tuple[str, ...]:
    """The UUIDs that jobs can get: the partitions of a GPU that is divided, else the GPU."""
    parts = tuple(part.uuid for part in device.partitions)
    return parts if device.is_mig_enabled else (device.uuid,)


def _first(inventory: GpuInventory) -> tuple[GpuDevice, str]:
    for device in inventory.devices:
        for uuid in usable(device):
            return device, uuid
    raise Unavailable("each GPU is divided by MIG and has no partition: `nvidia-smi mig -cgi`", 0)


async def _container(bench: Bench, inventory: GpuInventory) -> str:
    """A container that gets one GPU must list that one and no other."""
    device, uuid = _first(inventory)
    log, _ = await _run(bench, uuid, LIST_GPUS)
    check_listed(log, (uuid,), {device.uuid})
    return f"nvidia-smi in a container lists {uuid} and no other"


async def _kernels(bench: Bench, inventory: GpuInventory) -> str:
    """Each GPU must compute what the CPU computes, by the kernels that verifiers challenge."""
    wanted = await asyncio.to_thread(_roots, NumpyEngine)
    uuids = [uuid for device in inventory.devices for uuid in usable(device)]
    for uuid in uuids:
        found = await asyncio.to_thread(_roots, partial(bench.engine, uuid))
        if found != wanted:
            raise OtherBits(f"{uuid} computes other values than the CPU")
    return f"{len(uuids)} GPUs or partitions compute the same as the CPU"


def _roots(make: Callable[[], Engine]) -> tuple[Hash32, ...]:
    engine = make()
    try:
        prover = Prover(engine, CHECKED, 7, hash_tuple("selftest"))
        nonces = [(hash_tuple("selftest", stage),) for stage in range(STAGES)]
        return tuple(root for sent in nonces for root in prover.commit(sent))
    finally:
        engine.close()


async def _reference(bench: Bench, inventory: GpuInventory) -> str:
    """Two runs in containers of their own, with the torch profile, must give the same bits."""
    _, uuid = _first(inventory)
    words = ("python3", "/inputs/reference_program.py")
    results = [(await _run(bench, uuid, words))[1] for _ in range(2)]
    one, other = (sha256(result).hex()[:16] for result in results)
    if one != other:
        raise OtherBits(f"two runs on {uuid} gave {one} and {other}")
    return f"two runs on {uuid} gave {one}"


async def _run(bench: Bench, uuid: str, words: tuple[str, ...]) -> tuple[str, bytes]:
    image = await bench.image()
    async with bench.sandboxes() as runners:
        return await run_in_container(runners[0], image, words, bench.folder, (uuid,))


def check_image(named: str) -> Path | None:
    """Returns the archive that it names, None for a name of a registry. Raises Refused."""
    path = Path(named)
    if path.is_file():
        return path.resolve()
    if named.endswith(".tar") or named.startswith((".", "/")):
        raise Refused(Code.UNKNOWN, f"--image {named}: no such archive; name an image or a file")
    return None
