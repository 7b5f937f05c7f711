"""The market in columns, derived from the state's tables: never written by anybody else, never part of a snapshot.

Every write to a table that matters here leaves its key behind (`Table.follow`); before a search those rows are derived anew. So
a step that was refused, a restore and a replay all end with the index that the tables give.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate_coordinator.core import matching
from quorate_coordinator.core.matching import Bucket, Row
from quorate_protocol.audit import StakeSlot, eligible_root
from quorate_protocol.classes import HostClass
from quorate_protocol.merkle import merkle_root
from quorate_protocol.offer import Hardware, Offer, SlotOffer
from quorate_protocol.units import Address, BlockNumber, Hash32, Price, UnixSeconds

if TYPE_CHECKING:
    from quorate_coordinator.core.state import HostList, Provider, State

MEMORY_LIMIT, COUNT_LIMIT = (1 << 62), (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class Eligible:
    """Slots of a class that are alive with audit capacity, the length of its list, and the root over them."""

    slots: tuple[StakeSlot, ...]
    length: int
    root: Hash32


@dataclass(frozen=True, slots=True)
class _Staked:
    """Owners with an active slot; holds for this list from one block to before another."""

    hosts: "HostList | None"
    first: int
    after: int
    owners: frozenset[Address]


@dataclass(frozen=True, slots=True)
class _Kept:
    """An `Eligible`, while nothing of what it was made of has changed."""

    staked: _Staked
    version: int
    first: int
    until: int
    eligible: Eligible


NOBODY_STAKED = _Staked(None, 0, 0, frozenset())


def price_of(slot: SlotOffer) -> Price:
    """The price that tasks pay: on-demand, else spot."""
    return slot.on_demand or slot.spot


def slot_offer(offer: Offer, host_class: Hash32) -> SlotOffer | None:
    """An offer's slots in one host class."""
    return next((slot for slot in offer.slots if slot.host.id() == host_class), None)


def free_slots(state: "State", provider: "Provider", host_class: Hash32) -> int:
    """Run slots of the class without a lease of ours. What others took, the provider says by Decline."""
    slot = slot_offer(provider.offer, host_class) if provider.offer else None
    if slot is None:
        return 0
    held = state.occupied.get(provider.owner) or ()
    return max(0, slot.count - sum(1 for lease in held if state.leases[lease].assignment.message.host_class == host_class))


class MarketIndex:
    """Buckets by host class, with what orders need to know of a class."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self.buckets: dict[Hash32, Bucket] = {}
        self.hosts: dict[Hash32, HostClass] = {}
        self._classes: dict[Address, tuple[Hash32, ...]] = {}  # where a provider has rows
        self._staked: dict[Hash32, _Staked] = {}
        self._kept: dict[Hash32, _Kept] = {}
        self._trust_roots: dict[Hash32, Hash32] = {}
        self._block = BlockNumber(0)
        self._changed = (state.providers.follow(), state.occupied.follow(), state.trust.follow())
        self._changed_hosts, self._changed_trust = state.hosts.follow(), state.trust.follow()

    def refresh(self) -> None:
        """Takes what the tables say now."""
        for changed in self._changed:
            if changed:
                owners = tuple(changed)
                changed.clear()  # not popped one by one: a set that was large once is slow to pop from for good
                for owner in owners:
                    self._derive(owner)
        block = self._state.own.block
        if self._changed_hosts or block != self._block:
            self._changed_hosts.clear()
            self._block = block
            for host_class, bucket in self.buckets.items():
                if bucket.has_failed():
                    self.staked(host_class)

    def bucket(self, host_class: Hash32) -> Bucket | None:
        """A class's rows, with the feature STAKED as the chain has it."""
        self.refresh()
        bucket = self.buckets.get(host_class)
        if bucket is not None:
            self.staked(host_class)
        return bucket

    # ---- rows

    def _derive(self, owner: Address) -> None:
        provider = self._state.providers.get(owner)
        offer = provider.offer if provider is not None else None
        before = self._classes.get(owner, ())
        if provider is None or offer is None:
            now: tuple[Hash32, ...] = ()
        else:
            now = tuple(slot.host.id() for slot in offer.slots)
            for slot, host_class in zip(offer.slots, now, strict=True):
                bucket = self.buckets.get(host_class)
                if bucket is None:
                    bucket = self.buckets[host_class] = Bucket()
                    self.hosts[host_class] = slot.host
                bucket.put(owner, self._row(bucket, provider, offer, slot, host_class))
        if before != now:
            for host_class in before:
                if host_class not in now:
                    self.buckets[host_class].remove(owner)
            self._classes[owner] = now

    def _row(self, bucket: Bucket, provider: "Provider", offer: Offer, slot: SlotOffer, host_class: Hash32) -> Row:
        price = price_of(slot)
        bits = matching.PRESENT
        for kind in offer.kinds:
            bits |= 1 << matching.KIND_BIT + kind
        if price > 0:
            bits |= matching.PRICED
        if free_slots(self._state, provider, host_class) > 0:
            bits |= matching.FREE
        if provider.owner in self._staked.get(host_class, NOBODY_STAKED).owners:
            bits |= matching.STAKED
        if offer.cached:
            bits |= matching.CACHING
        trusts = self._state.trust.get(provider.owner)
        if trusts is not None and any(trust.strikes for trust in trusts.by_class.values()):
            bits |= matching.STRUCK
        until = 0 if provider.is_frozen else min(provider.alive_until, offer.expires)
        hardware = offer.hardware
        memory, cores = max(0, min(hardware.memory_bytes, MEMORY_LIMIT)), max(0, min(hardware.cores, COUNT_LIMIT))
        row = Row(matching.key_of(price, provider.index), bits, until, memory, cores)
        return _with_gpus(row, bucket, hardware) if hardware.gpus else row

    # ---- what the chain and the record say of a class

    def staked(self, host_class: Hash32) -> frozenset[Address]:
        """Distinct owners with an active slot in a class."""
        block, hosts = self._state.own.block, self._state.hosts.get(host_class)
        known = self._staked.get(host_class)
        if known is not None and known.hosts is hosts and known.first <= block < known.after:
            return known.owners
        slots = hosts.slots if hosts is not None else ()
        owners = frozenset(slot.owner for slot in slots if slot.is_active(block))
        turns = [edge for slot in slots for edge in (slot.active_from, slot.active_until) if edge > block]
        self._staked[host_class] = _Staked(hosts, block, min(turns, default=1 << 62), owners)
        before = known.owners if known is not None else frozenset()
        bucket = self.buckets.get(host_class)
        if bucket is not None and before != owners:
            if bool(before) != bool(owners):
                bucket.forget_failures()
            for owner in before ^ owners:
                if owner in bucket:
                    self._derive(owner)
        return owners

    def eligible(self, host_class: Hash32, at: UnixSeconds) -> Eligible:
        """The frame of a draw (PROTOCOL §5): slots active on chain whose owner is alive and offers the class."""
        bucket = self.bucket(host_class)
        self.staked(host_class)
        staked = self._staked[host_class]
        kept = self._kept.get(host_class)
        version = bucket.version if bucket is not None else 0
        if kept is not None and kept.staked is staked and kept.version == version and kept.first <= at < kept.until:
            return kept.eligible
        living, until = bucket.living(at) if bucket is not None else (set[Address](), 1 << 62)
        every = staked.hosts.slots if staked.hosts is not None else ()
        slots = tuple(slot for slot in every if slot.owner in living and slot.is_active(self._state.own.block))
        eligible = kept.eligible if kept is not None else Eligible((), 0, eligible_root(()))
        if (slots, len(every)) != (eligible.slots, eligible.length):
            eligible = Eligible(slots, len(every), eligible_root(slots))
        self._kept[host_class] = _Kept(staked, version, at, until, eligible)
        return eligible

    def trust_root(self, trust_class: Hash32) -> Hash32:
        """`Ack.stateRoot`: Merkle root over the trust of everybody in one job class."""
        if self._changed_trust:
            self._changed_trust.clear()
            self._trust_roots.clear()
        root = self._trust_roots.get(trust_class)
        if root is None:
            found = ((owner, trusts.by_class.get(trust_class)) for owner, trusts in self._state.trust.items())
            root = merkle_root(frozenset(trust.leaf(owner, trust_class) for owner, trust in found if trust is not None))
            self._trust_roots[trust_class] = root
        return root


def _with_gpus(row: Row, bucket: Bucket, hardware: Hardware) -> Row:
    gpus = tuple((gpu.model.lower(), max(0, min(gpu.vram_bytes, MEMORY_LIMIT))) for gpu in hardware.gpus)
    model = bucket.model_number(gpus[0][0]) if len(set(gpus)) == 1 else 0
    vram = max(size for _, size in gpus)
    if not model:
        return row._replace(bits=row.bits | matching.MIXED, gpus=len(gpus), vram=vram, mixed=gpus)
    return row._replace(gpus=min(len(gpus), COUNT_LIMIT), vram=vram, model=model)
