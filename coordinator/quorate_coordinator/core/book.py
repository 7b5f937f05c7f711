"""The order book: live offers, their free slots, and which provider a primary goes to.

Never in SQL. Small and simple now: providers of a host class by price; the columnar book takes this module's place.
"""

from dataclasses import dataclass, replace

from quorate_coordinator.core.events import HeartbeatReceived, OfferReceived
from quorate_coordinator.core.state import Job, Provider
from quorate_coordinator.core.turn import Turn
from quorate_protocol import job as job_rules
from quorate_protocol.audit import StakeSlot
from quorate_protocol.hashing import hash_tuple
from quorate_protocol.messages import Heartbeat
from quorate_protocol.offer import Offer, SlotOffer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, UnixSeconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider that fits, with its price in this class."""

    provider: Provider
    price: Price


def on_offer(turn: Turn, event: OfferReceived) -> None:
    """Takes a newer offer of a registered provider, signed by its operator key."""
    offer = event.offer.offer
    provider = registered(turn, offer.provider, event.key)
    known = provider.offer
    if known is not None and offer.seq <= known.seq:
        if offer == known:
            return
        raise Refused(Code.STALE, f"offer: seq {offer.seq} is not above {known.seq}")
    turn.state.providers[provider.owner] = replace(provider, offer=offer, alive_until=_alive(turn))


def on_heartbeat(turn: Turn, event: HeartbeatReceived) -> None:
    """Keeps a provider alive."""
    beat: Heartbeat = event.heartbeat.message
    provider = registered(turn, beat.provider, event.key)
    if abs(turn.at - beat.time) > 60:
        raise Refused(Code.STALE, "heartbeat: its time is more than 60 s off; set the clock")
    if beat.seq <= provider.heartbeat_seq:
        raise Refused(Code.STALE, f"heartbeat: seq {beat.seq} is not above {provider.heartbeat_seq}")
    turn.state.providers[provider.owner] = replace(provider, heartbeat_seq=beat.seq, alive_until=_alive(turn))


def _alive(turn: Turn) -> UnixSeconds:
    return UnixSeconds(turn.at + turn.rules.limits.heartbeat_alive)


def registered(turn: Turn, owner: Address, key: Address) -> Provider:
    """The registered provider whose operator key `key` is."""
    provider = turn.state.providers.get(owner)
    if provider is None:
        raise Refused(Code.NOT_REGISTERED, f"provider 0x{owner.hex()}: register in Stakes first")
    if key != provider.operator_key:
        raise Refused(Code.WRONG_SIGNER, f"signed by 0x{key.hex()}, not by the operator key of 0x{owner.hex()}")
    return provider


def slot_offer(offer: Offer, host_class: Hash32) -> SlotOffer | None:
    """An offer's slots in one host class."""
    return next((slot for slot in offer.slots if slot.host.id() == host_class), None)


def price_of(slot: SlotOffer) -> Price:
    """The price that tasks pay: on-demand, else spot."""
    return slot.on_demand or slot.spot


def free_slots(turn: Turn, provider: Provider, host_class: Hash32) -> int:
    """Run slots of the class without a lease of ours. What others took, the provider says by Decline."""
    slot = slot_offer(provider.offer, host_class) if provider.offer else None
    if slot is None:
        return 0
    held = turn.state.occupied.get(provider.owner) or ()
    return max(0, slot.count - sum(1 for lease in held if _class_of(turn, lease) == host_class))


def _class_of(turn: Turn, lease_hash: Hash32) -> Hash32:
    return turn.state.leases[lease_hash].assignment.message.host_class


def owners_of(turn: Turn, host_class: Hash32) -> frozenset[Address]:
    """Distinct staked owners of a class, active now."""
    slots = turn.state.hosts.get(host_class)
    block = turn.state.own.block
    return frozenset(slot.owner for slot in slots.slots if slot.is_active(block)) if slots else frozenset()


def eligible_slots(turn: Turn, host_class: Hash32) -> tuple[tuple[StakeSlot, ...], int]:
    """(slots that are alive with audit capacity, length of the list)."""
    hosts = turn.state.hosts.get(host_class)
    if hosts is None:
        return (), 0
    block = turn.state.own.block
    alive = []
    for slot in hosts.slots:
        provider = turn.state.providers.get(slot.owner)
        if provider and slot.is_active(block) and provider.is_alive(turn.at) and provider.offer and slot_offer(provider.offer, host_class):
            alive.append(slot)
    return tuple(alive), len(hosts.slots)


def candidates(turn: Turn, job: Job) -> list[Candidate]:
    """Providers that could run a job's primary now, cheapest first; ties in an order nobody can foresee."""
    order = job.submission.order.message
    host_class = job.ack.message.host_class
    found = []
    for owner in sorted(owners_of(turn, host_class) or turn.state.providers.keys()):
        provider = turn.state.providers.get(owner)
        if provider is None or owner in job.refused_by or not provider.is_alive(turn.at) or provider.offer is None:
            continue
        slot = slot_offer(provider.offer, host_class)
        if slot is None or not 0 < price_of(slot) <= order.max_price_per_hour or not fits(provider.offer, job.submission.spec):
            continue
        if free_slots(turn, provider, host_class) > 0:
            found.append(Candidate(provider, price_of(slot)))
    return sorted(found, key=lambda item: (item.price, hash_tuple(turn.random, item.provider.owner)))


def fits(offer: Offer, spec: job_rules.JobSpec) -> bool:
    """Whether the machine can hold the job at all."""
    resources = spec.resources
    if spec.kind not in offer.kinds or resources.memory_bytes > offer.hardware.memory_bytes:
        return False
    if resources.gpu is not None:
        big = [gpu for gpu in offer.hardware.gpus if gpu.vram_bytes >= resources.gpu.vram_bytes_min]
        named = [gpu for gpu in big if not resources.gpu.model or gpu.model.lower() == resources.gpu.model.lower()]
        return len(named) >= resources.gpu.count
    return resources.cpu_millis <= offer.hardware.cores * 1000


def classes_for(turn: Turn, wanted: Hash32, spec: job_rules.JobSpec, price_max: Price) -> list[Hash32]:
    """Host classes in which at least one live offer fits, most owners first."""
    found: set[Hash32] = set()
    for provider in turn.state.providers.values():
        if not provider.is_alive(turn.at) or provider.offer is None or not fits(provider.offer, spec):
            continue
        for slot in provider.offer.slots:
            is_kind = slot.host.is_gpu == (spec.resources.gpu is not None)
            if is_kind and wanted in (ZERO_HASH, slot.host.id()) and 0 < price_of(slot) <= price_max:
                found.add(slot.host.id())
    return sorted(found, key=lambda item: (-len(owners_of(turn, item)), item))
