"""Makes GPU run slots of the machine's GPUs, as the owner wants them. Pure.

A slot has GPUs of one model. If it has several, they are those with the fastest paths between them.
A MIG partition is a slot of its own.
"""

from dataclasses import dataclass, field

from quorate_attestation.catalogue import contradiction, model_of_driver_name
from quorate_attestation.gpu_match import names_called, number_of, tenfold
from quorate_node.base.config import Settings, largest_slot, offer_room_bytes
from quorate_node.base.gpu_settings import COUNT_MAX, GpuLayout, GpuPrice
from quorate_protocol.codec import canonical
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages.classes import Host, Pool
from quorate_protocol.messages.gpu_inventory import PATHS, GpuDevice, GpuInventory, MigPartition
from quorate_protocol.messages.offer import offered_gpu_name
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Price, Small
from quorate_protocol.values import replace

CAPABILITY_MIN = 75  # 7.5, Turing: older GPUs have no deterministic libraries


def check_offerable(device: GpuDevice, partition: MigPartition | None = None) -> int:
    """Its count of streaming multiprocessors. Raises Refused(UNSUPPORTED) for a GPU that is too
    old, without an SM count, or in MIG mode without a partition.
    """
    sm_count = partition.sm_count if partition else device.sm_count
    if not sm_count or tenfold(device.compute_capability) < CAPABILITY_MIN:
        raise Refused(
            Code.UNSUPPORTED,
            f"GPU {device.uuid}: {device.model} (compute capability {device.compute_capability}, "
            f"{sm_count} SMs) cannot be offered, only {number_of(CAPABILITY_MIN)} and newer; offer "
            "CPU slots",
        )
    if device.is_mig_enabled and partition is None:
        raise Refused(
            Code.UNSUPPORTED, f"GPU {device.uuid} is in MIG mode; offer its partitions instead"
        )
    return sm_count


SEPARATOR_BYTES = 1  # the comma between two slots of an offer
PRICE_REMEDY = "name a price: quorate node init --gpu-price USD"


@dataclass(frozen=True, slots=True)
class GpuSlots:
    """Run slots of a GPU pool: bytes of one GPU, each slot's UUIDs, slot-hour price."""

    pool: Pool
    capability: str
    sm_count: int
    driver: str
    vram_bytes: int
    groups: tuple[tuple[str, ...], ...]
    price: Price

    def host(self, cpu: Host) -> Host:
        """GPU jobs never run in gVisor (2.27)."""
        return replace(
            cpu, sandbox="", capability=self.capability, sm_count=self.sm_count, driver=self.driver
        )


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The GPU slots to offer, and what is not offered for which reason, for the owner."""

    classes: tuple[GpuSlots, ...]
    problems: tuple[str, ...]
    unreachable: str = ""  # why GPUs that were tried in a container are not offered


@dataclass(frozen=True, slots=True)
class _Unit:
    """What a job can use as one GPU: a whole GPU, or a partition of one."""

    model: str  # as it is called, with the profile of a partition
    whole: str  # the model of its GPU
    place: int  # in the inventory's devices
    device: GpuDevice
    partition: MigPartition | None = None

    @property
    def uuid(self) -> str:
        return (self.partition or self.device).uuid

    @property
    def vram_bytes(self) -> int:
        return (self.partition or self.device).vram_bytes


@dataclass(slots=True)
class _Work:
    """What is left while slots are made."""

    settings: Settings
    inventory: GpuInventory
    units: list[_Unit]
    room_bytes: int  # of the offer
    found: dict[Hash32, GpuSlots] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def lay_out(inventory: GpuInventory, settings: Settings) -> LaidOut:
    """A GPU is in one slot at most. GPUs without a price are not offered, and no class for which
    the offer has no room.
    """
    work = _Work(settings, inventory, _units(inventory), offer_room_bytes(settings))
    for layout in settings.gpu_slots:
        _follow(work, layout, settings.gpu_prices)
    return LaidOut(tuple(work.found.values()), tuple(dict.fromkeys(work.problems)))


def _units(inventory: GpuInventory) -> list[_Unit]:
    found = []
    for place, device in enumerate(inventory.devices):
        model = model_of_driver_name(device.model)
        name = model.name if model else offered_gpu_name(device.model)
        if not device.is_mig_enabled:
            found.append(_Unit(name, name, place, device))
        for part in device.partitions:
            # Another name than the whole GPU's, so that a job that asks for the model gets all of
            # it.
            called = offered_gpu_name(f"{name} {part.profile}")
            found.append(_Unit(called, name, place, device, part))
    return found


def _follow(work: _Work, layout: GpuLayout, prices: tuple[GpuPrice, ...]) -> None:
    made = 0
    models = dict.fromkeys(unit.model for unit in work.units if _is_called(unit.model, layout))
    for model in models:
        price = price_of(model, prices)
        fitting = [
            unit
            for unit in work.units
            if unit.model == model and (layout.size == 1 or unit.partition is None)
        ]
        if fitting and not price:
            work.problems.append(f"{len(fitting)}x {model} without a price: {PRICE_REMEDY}")
            made += len(fitting) // layout.size
            continue
        while len(fitting) >= layout.size and (not layout.count or made < layout.count):
            group = _closest(work.inventory, fitting, layout.size)
            fitting = [unit for unit in fitting if unit not in group]
            made += _add(work, group, price)
    if made < layout.count:
        kind = f"{layout.size}x {layout.model or 'GPU'}"
        work.problems.append(
            f"gpuSlots asks for {layout.count} slots of {kind}, and this machine has GPUs for "
            f"{made}: change --gpu-slots"
        )


def _is_called(model: str, layout: GpuLayout) -> bool:
    return not layout.model or model.lower() in names_called(layout.model)


def price_of(model: str, prices: tuple[GpuPrice, ...]) -> Price:
    """That of its model, else the general one, else 0. The last of several counts."""
    own = [
        item.price for item in prices if item.model and model.lower() in names_called(item.model)
    ]
    general = [item.price for item in prices if not item.model]
    return (own or general or [Price(0)])[-1]


def _closest(inventory: GpuInventory, units: list[_Unit], size: int) -> list[_Unit]:
    """The first unit and those that it reaches fastest."""
    first, *others = units
    kinds = {(path.first, path.second): PATHS.index(path.kind) for path in inventory.paths}

    def distance(unit: _Unit) -> tuple[int, int]:
        pair = (min(first.place, unit.place), max(first.place, unit.place))
        return kinds.get(pair, len(PATHS)), unit.place

    return [first, *sorted(others, key=distance)[: size - 1]]


def _add(work: _Work, group: list[_Unit], price: Price) -> bool:
    """False if no slot can be made of them."""
    first = group[0]
    profile = first.partition.profile if first.partition else ""
    pool = Pool(first.whole, profile, Small(len(group)))
    try:
        sm_count = check_offerable(first.device, first.partition)
        pool.validate()
        said = contradiction(pool.gpu, first.device.compute_capability, sm_count)
        if said and not profile:
            raise Refused(Code.UNSUPPORTED, said)
    except Refused as refused:
        work.problems.append(refused.detail)  # not re-raised: the other GPUs can be offered
        return False
    known = work.found.get(pool.id())
    needed = len(canonical.encode(largest_slot(pool, work.settings))) + SEPARATOR_BYTES
    if known is None and needed > work.room_bytes:
        work.problems.append(
            f"{first.model} is not offered: {len(work.found)} pools of GPUs and your --image "
            f"fill the {OFFER_BYTES_MAX} bytes of an offer; run a second provider for it"
        )
        return False
    facts = (first.device.compute_capability, sm_count)
    if known is not None and (
        (known.capability, known.sm_count) != facts or len(known.groups) >= COUNT_MAX
    ):
        work.problems.append(
            f"{first.model} is not offered: a pool has {COUNT_MAX} slots at most, with equal GPUs; "
            "run a second provider for it"
        )
        return False
    uuids = tuple(unit.uuid for unit in group)
    vram = min(unit.vram_bytes for unit in group)
    groups = (*known.groups, uuids) if known else (uuids,)
    work.room_bytes -= 0 if known else needed
    work.found[pool.id()] = GpuSlots(
        pool=pool,
        capability=facts[0],
        sm_count=sm_count,
        driver=work.inventory.driver_version.partition(".")[0],
        vram_bytes=min(vram, known.vram_bytes) if known else vram,
        groups=groups,
        price=Price(price * len(group)),
    )
    work.units = [unit for unit in work.units if unit not in group]
    return True
