"""Divides the machine into run slots: GPU slots first, and CPU slots get what they leave. Pure."""

from quorate_node.base.config import Config, RentalTerms
from quorate_node.core.terms import RunSlots, SlotResources
from quorate_node.machine.gpu_slots import GpuSlots
from quorate_protocol.messages.classes import CPUS, Host, Pool
from quorate_protocol.messages.job_spec import CUDA_MAX
from quorate_protocol.messages.offer import Hardware, SlotOffer, in_steps
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price, Small
from quorate_protocol.values import replace

SANDBOXES_WITH_GPUS = (Sandbox.DOCKER_RUNC, Sandbox.DOCKER_RUNSC, Sandbox.NOOP)
DISK_LEAST = 4 << 30  # of one run slot, without --job-disk
OUTPUT_IN_MEMORY_MAX = 4 << 30  # of executors that cannot make volumes on disk
MEMORY_SHARE = (9, 10)  # how much of the machine's memory all jobs together may use


def divide(
    config: Config,
    hardware: Hardware,
    cpu: Host,
    gpus: tuple[GpuSlots, ...],
    has_volumes: bool = True,
    unreachable: str = "",
) -> tuple[RunSlots, ...]:
    """Cores and memory are divided into a part for each GPU on offer and one for all CPU slots,
    which share what GPU slots leave. All run slots get the same disk. Raises Refused without any
    slot.
    """
    if not config.cpu_slots and not gpus:
        raise Refused(
            Code.MALFORMED,
            f"no GPU is on offer{': ' * bool(unreachable)}{unreachable}; name a price with "
            "--gpu-price and see `quorate node check`, or CPU slots with `node init --slots 1`",
        )
    cores = hardware.cores * 1000
    memory = hardware.memory_bytes * MEMORY_SHARE[0] // MEMORY_SHARE[1]
    count = sum(len(group) for item in gpus for group in item.groups)
    parts = max(1, count + (config.cpu_slots > 0))
    disk = _disk(config, hardware, count + config.cpu_slots, has_volumes)
    found = []
    if config.cpu_slots:
        left = (cores - cores // parts * count, memory - memory // parts * count)
        resources = _resources(
            config,
            config.cpu_millis or left[0] // config.cpu_slots,
            left[1] // config.cpu_slots,
            disk,
        )
        offer = _offer(CPUS, cpu, config.cpu_slots, 0, resources, config.price)
        found.append(RunSlots(offer, resources))
    for item in gpus:
        size = item.pool.gpus
        resources = _resources(config, cores // parts * size, memory // parts * size, disk)
        offer = _offer(
            item.pool, item.host(cpu), len(item.groups), item.vram_bytes, resources, item.price
        )
        found.append(RunSlots(offer, resources, item.groups))
    return tuple(found)


def with_cuda(slots: RunSlots, version: str) -> RunSlots:
    """Returns GPU slots with the newest CUDA of the driver; it says "" if it does not know."""
    major, _, minor = version.partition(".")
    minor = minor[:1] or "0"
    if not (slots.offer.pool.is_gpu and major.isdecimal() and minor.isdecimal()):
        return slots
    cuda = min(CUDA_MAX, int(major) * 10 + int(minor))
    return replace(slots, offer=replace(slots.offer, cuda=cuda))


def on_terms(slots: RunSlots, config: Config) -> RunSlots:
    """Returns them with the owner's price as the spot price, if rentals end for the owner, or with
    a lower spot price beside it.
    """
    offer, price = slots.offer, slots.offer.price
    if config.rentals is RentalTerms.SPOT:
        offer = replace(offer, spot=price, on_demand=Price(0))
    elif config.spot_percent:
        offer = replace(offer, spot=Price(price * config.spot_percent // 100))
    return replace(slots, offer=offer)


def needs_engine(sandbox: Sandbox) -> str:
    """Why there are no GPU slots in a sandbox, with the remedy."""
    return f"jobs run in {sandbox.value}, which has no GPUs; install Docker"


def _disk(config: Config, hardware: Hardware, slots: int, has_volumes: bool) -> tuple[int, int]:
    """Bytes of (outputs, /scratch and /tmp) of one run slot. An output takes twice its size:
    its volume, and the copy that is checked and sealed.
    """
    each = config.job_disk_bytes // slots
    if not config.job_disk_bytes:
        each = max(DISK_LEAST, in_steps(hardware.disk_bytes // 2 // slots))
    output = each // 3
    return (output, each - 2 * output) if has_volumes else (min(output, OUTPUT_IN_MEMORY_MAX), 0)


def _resources(
    config: Config, cpu_millis: int, memory_bytes: int, disk: tuple[int, int]
) -> SlotResources:
    return SlotResources(
        cpu_millis=cpu_millis,
        memory_bytes=memory_bytes,
        scratch_bytes=disk[1],
        output_bytes=disk[0],
        input_bytes=config.store_bytes,
    )


def _offer(
    pool: Pool, host: Host, count: int, vram_bytes: int, resources: SlotResources, price: Price
) -> SlotOffer:
    return SlotOffer(
        pool=pool,
        host=host,
        count=Small(count),
        vram_bytes=vram_bytes,
        cpu_millis=resources.cpu_millis,
        memory_bytes=resources.memory_bytes,
        scratch_bytes=resources.scratch_bytes,
        output_bytes=resources.output_bytes,
        input_bytes=resources.input_bytes,
        spot=Price(0),
        on_demand=price,
        reserved=Price(0),
    )
