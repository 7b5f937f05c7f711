"""Names the GPU offer that is nearest to a job that none fits, and what this offer lacks."""

from collections.abc import Iterable

from quorate_attestation import fits, gpu_match
from quorate_coordinator.core.matching import offers
from quorate_protocol.messages.job_spec import GpuRequest, JobSpec
from quorate_protocol.messages.offer import Offer, SlotOffer
from quorate_protocol.units import usd

_Kind = tuple[object, ...]


def nearest_gpu(live: Iterable[Offer], spec: JobSpec) -> str:
    """Returns a sentence for a refusal: the nearest GPU slot on offer, its price, what it lacks.

    The nearest slot lacks the fewest things. Among equals it has the model that the job asks for,
    then the most GPUs and memory of what the job asks for, then the lowest price.
    """
    wanted = spec.resources.gpu
    assert wanted is not None, "the job asks for GPUs"
    kinds: dict[_Kind, tuple[Offer, SlotOffer]] = {}
    for offer in live:
        for slot in offer.slots:
            price, key = offers.price_of(slot), _kind(offer, slot)
            known = kinds.get(key)
            if slot.host.is_gpu and price and (not known or price < offers.price_of(known[1])):
                kinds[key] = (offer, slot)
    if not kinds:
        return "no GPU is on offer"
    offer, slot = min(kinds.values(), key=lambda item: _distance(item, spec, wanted))
    lacking = ", ".join(_lacking(offer, slot, spec))
    return (
        f"the nearest has {gpu_match.describe_slot(slot)} at {usd(offers.price_of(slot))} USD an "
        f"hour: {lacking}"
    )


def _kind(offer: Offer, slot: SlotOffer) -> _Kind:
    """What decides about fitting. So each kind of slot is compared once, however many offer it."""
    numbers = (slot.host.world_size, slot.vram_bytes, slot.memory_bytes, slot.cpu_millis)
    disk = (slot.scratch_bytes, slot.output_bytes, slot.input_bytes, offer.store_bytes)
    names = (slot.gpu, slot.host.architecture, *offer.sandboxes)
    return (numbers, disk, slot.cuda, offer.kinds, names, offer.images)


def _distance(
    item: tuple[Offer, SlotOffer], spec: JobSpec, wanted: GpuRequest
) -> tuple[int, bool, int, int, int]:
    offer, slot = item
    lacks = len(_lacking(offer, slot, spec))
    is_other = bool(wanted.model) and slot.gpu.lower() not in gpu_match.names_called(wanted.model)
    has = min(slot.host.world_size, wanted.count), min(slot.vram_bytes, wanted.vram_bytes_min)
    return lacks, is_other, -has[0], -has[1], offers.price_of(slot)


def _lacking(offer: Offer, slot: SlotOffer, spec: JobSpec) -> list[str]:
    return [text for _, text in fits.shortfalls(spec, slot, offer)]
