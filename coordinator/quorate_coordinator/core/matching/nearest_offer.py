"""Says in words why no offer fits an order, and which limit to relax: the same for `plan` and for
the refusal of an order.
"""

from collections.abc import Iterable
from itertools import islice

from quorate_attestation import fits, gpu_match
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model import attestation_levels
from quorate_coordinator.core.model.market_index import slot_offer
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import OWNERS_MIN_QUORUM
from quorate_protocol.messages import egress
from quorate_protocol.messages.job_spec import GpuRequest, JobSpec, image_digest
from quorate_protocol.messages.offer import Offer, SlotOffer
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, usd
from quorate_protocol.values import replace

_Kind = tuple[object, ...]


def nearest_gpu(live: Iterable[Offer], spec: JobSpec) -> str:
    """A sentence for a refusal: the nearest GPU slot on offer, its price, what it lacks.

    It lacks the fewest things. Among equals it has the model that the job asks for, then the most
    GPUs and memory of what the job asks for, then the lowest price.
    """
    wanted = spec.resources.gpu
    assert wanted is not None, "the job asks for GPUs"
    kinds: dict[_Kind, tuple[Offer, SlotOffer]] = {}
    for offer in live:
        for slot in offer.slots:
            price, key = slot.price, _kind(offer, slot)
            known = kinds.get(key)
            if slot.pool.is_gpu and price and (not known or price < known[1].price):
                kinds[key] = (offer, slot)
    if not kinds:
        return "no GPU is on offer"
    offer, slot = min(kinds.values(), key=lambda item: _distance(item, spec, wanted))
    lacking = ", ".join(_lacking(offer, slot, spec))
    return (
        f"the nearest has {gpu_match.describe_slot(slot)} at {usd(slot.price)} USD an "
        f"hour: {lacking}"
    )


def _kind(offer: Offer, slot: SlotOffer) -> _Kind:
    numbers = (slot.pool.gpus, slot.vram_bytes, slot.memory_bytes, slot.cpu_millis)
    disk = (slot.scratch_bytes, slot.output_bytes, slot.input_bytes, offer.store_bytes)
    names = (slot.gpu, slot.host.capability, *offer.sandboxes)
    return (numbers, disk, slot.cuda, offer.kinds, names, offer.images, offer.egress)


def _distance(
    item: tuple[Offer, SlotOffer], spec: JobSpec, wanted: GpuRequest
) -> tuple[int, bool, int, int, int]:
    offer, slot = item
    lacks = len(_lacking(offer, slot, spec))
    is_other = bool(wanted.model) and slot.gpu.lower() not in gpu_match.names_called(wanted.model)
    has = min(slot.pool.gpus, wanted.count), min(slot.vram_bytes, wanted.vram_bytes_min)
    return lacks, is_other, -has[0], -has[1], slot.price


def _lacking(offer: Offer, slot: SlotOffer, spec: JobSpec) -> list[str]:
    return [text for _, text in fits.shortfalls(spec, slot, offer)]


PROVIDERS_LOOKED_MAX = 4096


def no_offer(context: StepContext, spec: JobSpec, price_max: Price, named: Hash32) -> str:
    """`named` is the order's pool, ZERO_HASH for any."""
    live = [
        provider.offer
        for provider in islice(context.state.providers.values(), PROVIDERS_LOOKED_MAX)
        if provider.is_alive(context.at) and provider.offer
    ]
    if named == ZERO_HASH:
        return _nearest(context, spec, price_max, live)
    of_class = [
        replace(offer, slots=(slot,))
        for offer in live
        if (slot := slot_offer(offer, named)) is not None
    ]
    why = f": {_nearest(context, spec, price_max, of_class)}" if of_class else ""
    return f"no live offer of pool 0x{named.hex()} fits{why}"


def few_owners(
    context: StepContext, spec: JobSpec, price_max: Price, pool: Hash32, pools: tuple[Hash32, ...]
) -> str:
    """Names the pool that fits and has enough owners, if there is one."""
    owners = len(offers.owners_of(context, *pools))
    where = "the pool" if len(pools) == 1 else f"the {len(pools)} pools that fit"
    told = f"only {owners} staked owners in {where}; verification needs {OWNERS_MIN_QUORUM}"
    other = offers.class_for(context, ZERO_HASH, spec, price_max, is_thin_too=True)
    count = 0 if other in (None, pool) else len(offers.owners_of(context, other))
    if other is None or count < OWNERS_MIN_QUORUM:
        return f"{told}; no other pool that fits has so many"
    return f"{told}; {context.state.market.pools[other]} fits and has {count}"


def lonely_price(
    context: StepContext, pools: tuple[Hash32, ...], spec: JobSpec, price_max: Price
) -> Refused | None:
    """None if two owners offer what fits at this price."""
    wanted = offers.second_price(context, pools, spec)
    if wanted is None:
        return Refused(
            Code.TOO_FEW_OWNERS,
            "order: fewer than 2 owners of the class have a live offer that fits; verification "
            "needs 2",
        )
    if wanted <= price_max:
        return None
    return Refused(
        Code.PRICE_TOO_HIGH,
        f"order: at {usd(price_max)} USD an hour fewer than 2 owners of the class run it; 2 do "
        f"from {usd(wanted)} USD an hour on: raise max_price",
    )


def thin_class(context: StepContext, pool: Hash32) -> str:
    limits, owners = context.rules.limits, len(offers.owners_of(context, pool))
    return (
        f"an order that names no class needs {limits.class_owners_min_any} owners of "
        f"{limits.class_owner_age // 86_400} days; 0x{pool.hex()} has {owners} in all: name "
        "it if these will do"
    )


def _nearest(context: StepContext, spec: JobSpec, price_max: Price, live: list[Offer]) -> str:
    if not live:
        return "no provider is alive"
    fitting = [
        (slot.price_for(spec.spot), _has_level(context, offer.provider, slot, spec))
        for offer in live
        for slot in offer.slots
        if slot.price and offers.fits(offer, slot, spec)
    ]
    prices = [price for price, has_level in fitting if has_level]
    if fitting and not prices:
        cheapest = min(price for price, _ in fitting)
        return (
            f"none of the {len(fitting)} run slots that fit is attested at level "
            f"{spec.attestation_level}; the cheapest of them costs {usd(cheapest)} USD an hour: "
            "leave out attestation"
        )
    if prices:
        return (
            f"the cheapest offer that fits costs {usd(min(prices))} USD an hour, above "
            f"{usd(price_max)}: raise max_price"
        )
    willing = [offer for offer in live if spec.kind in offer.kinds]
    if not willing:
        return (
            f"no owner who is alive offers {spec.kind.name.lower().replace('_', '-')}s: try later"
        )
    terms = [slot.is_spot for offer in willing for slot in offer.slots]
    if spec.kind.is_rental and not spec.spot and all(terms):
        return "those who rent do so at spot only, and end rentals when they need the machine: spot"
    hostless = replace(spec, egress=())
    if any(offers.fits(offer, slot, hostless) for offer in willing for slot in offer.slots):
        return (
            f"no owner allows egress to {', '.join(_hosts_lacking(willing, spec))}; leave it out, "
            "or ask owners: quorate offers --rentals"
        )
    return f"no live offer has the resources; {_biggest(live, spec)}: relax resources"


def _has_level(context: StepContext, owner: Address, slot: SlotOffer, spec: JobSpec) -> bool:
    provider = context.state.providers[owner]
    level = attestation_levels.level_of(context.state, provider, slot, context.at)
    return level >= spec.attestation_level


def _biggest(live: list[Offer], spec: JobSpec) -> str:
    slots = [slot for offer in live for slot in offer.slots]
    if spec.resources.gpu is not None:
        return nearest_gpu(live, spec)
    cpus = [slot for slot in slots if not slot.gpu]
    if not cpus:
        return "no CPU slot is on offer"
    cores = max(slot.cpu_millis for slot in cpus) / 1000
    memory = size_text(max(slot.memory_bytes for slot in cpus))
    disk = "".join(
        f", {size_text(max(sizes))} for {name}"
        for name, asked, sizes in (
            ("scratch", spec.resources.disk_scratch_bytes, [slot.scratch_bytes for slot in cpus]),
            ("outputs", spec.resources.output_bytes, [slot.output_bytes for slot in cpus]),
            ("image and inputs", spec.input_bytes(), [slot.input_bytes for slot in cpus]),
            ("image, inputs and outputs", spec.store_bytes(), [it.store_bytes for it in live]),
        )
        if asked > max(sizes)
    )
    largest = f"the largest run slots on offer have {cores:g} cores and {memory} of memory"
    fastest, size = max(offer.bandwidth for offer in live), quotes.fetch_bytes(spec)
    if fastest < quotes.bandwidth_least(spec):
        seconds = quotes.fetch_seconds(size, fastest)
        disk += f", and the fastest fetches {size_text(size)} in {seconds} s: raise start_within"
    listed = [offer.images for offer in live]
    if all(images and image_digest(spec.image) not in images for images in listed):
        disk += f", and image {spec.image} is on no owner's list: name another image"
    if spec.egress and (missing := _hosts_lacking(live, spec)):
        disk += f", and no owner allows egress to {', '.join(missing)}: leave it out"
    return largest + disk


def _hosts_lacking(live: list[Offer], spec: JobSpec) -> tuple[str, ...]:
    """The hosts that no offer allows, or all if each is allowed by another one."""
    allowed = [name for offer in live for name in offer.egress]
    return egress.lacking(allowed, spec.egress) or spec.egress
