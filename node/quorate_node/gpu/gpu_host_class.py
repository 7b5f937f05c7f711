"""The host class of a GPU run slot, from the machine's inventory (PROTOCOL §2)."""

from quorate_protocol.messages.classes import HostClass
from quorate_protocol.messages.gpu_inventory import GpuDevice, GpuInventory, MigPartition
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Small

_ARCHITECTURE_OF_MAJOR = {"9": "hopper", "10": "blackwell", "11": "blackwell", "12": "blackwell"}
_ARCHITECTURE_OF_CAPABILITY = {
    "7.5": "turing",
    "8.0": "ampere",
    "8.6": "ampere",
    "8.7": "ampere",
    "8.9": "ada",
}


def architecture_of(capability: str) -> str:
    """Architecture of a compute capability such as "9.0"; "" for one that no class has."""
    major = capability.partition(".")[0]
    return _ARCHITECTURE_OF_CAPABILITY.get(capability) or _ARCHITECTURE_OF_MAJOR.get(major, "")


def host_class_of(
    inventory: GpuInventory,
    device: GpuDevice,
    partition: MigPartition | None = None,
    world_size: int = 1,
) -> HostClass:
    """Host class of a slot with `world_size` GPUs like `device`, or with one of its partitions.

    Raises `Refused(UNSUPPORTED)` for a GPU that is older than every class or whose driver gives no
    SM count, and for a GPU in MIG mode without a partition.
    """
    architecture = architecture_of(device.compute_capability)
    sm_count = partition.sm_count if partition else device.sm_count
    if not architecture or not sm_count:
        raise Refused(
            Code.UNSUPPORTED,
            f"GPU {device.uuid}: {device.model} (compute capability {device.compute_capability}, "
            f"{sm_count} SMs) has no host class; offer CPU slots instead",
        )
    if device.is_mig_enabled and partition is None:
        raise Refused(
            Code.UNSUPPORTED, f"GPU {device.uuid} is in MIG mode; offer its partitions instead"
        )
    host = HostClass(
        architecture,
        sm_count=sm_count,
        mig_profile=partition.profile if partition else "",
        driver_branch=inventory.driver_version.partition(".")[0],
        world_size=Small(world_size),
    )
    host.validate()
    return host
