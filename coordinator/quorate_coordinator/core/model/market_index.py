"""The market's offers in columns, derived from the state's tables. No snapshot contains them.

The index follows every table that it depends on (`Table.follow`). Before a search it derives the
rows of changed keys again. So after a refused step, a restore or a replay, it is what follows from
the tables.
"""

from collections import Counter, deque
from functools import lru_cache
from operator import is_
from typing import TypeVar

from msgspec import Struct

from quorate_attestation import fits, gpu_match
from quorate_coordinator.core.model import attestation_levels
from quorate_coordinator.core.model import row as rows
from quorate_coordinator.core.model.columns import Bucket
from quorate_coordinator.core.model.entities import EligibleSnapshot, PoolSlots, Provider
from quorate_coordinator.core.model.needs import sandbox_bits
from quorate_coordinator.core.model.row import Row
from quorate_coordinator.core.model.tables import StateTables
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.egress import EVERY_HOST
from quorate_protocol.messages.eligible_list import EligibleList, joined
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import WITHDRAWN, Offer, SlotOffer
from quorate_protocol.messages.receipt import WithdrawalEvidence
from quorate_protocol.messages.signed import Accept
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules.reputation import rank
from quorate_protocol.rules.reputation.fold import Trusts, trust_root
from quorate_protocol.units import Address, BlockNumber, Hash32, JobKind, UnixSeconds

B = TypeVar("B", bound=bytes)


class _Staked(Struct, frozen=True):
    """Valid for the list `hosts`, from block `first` until before `after`."""

    listed: PoolSlots | None
    first: int
    after: int
    counts: dict[Address, int]  # active slots of each owner
    owners: frozenset[Address]


class _Kept(Struct, frozen=True):
    """An `EligibleList` that is valid while its sources do not change."""

    staked: tuple[_Staked, ...]
    withdrawn: frozenset[Address]
    eligible: EligibleList


NOBODY_STAKED = _Staked(None, 0, 0, {}, frozenset())
IDLE_MAX = (
    64  # classes without offers that are kept; one offer of a provider may name sixteen new ones
)
IDLE_LOOKS = 32
CLASS_SETS_MAX = 4096
WORK_WINDOW_FIRST = 1  # run slots that a provider without a commit or a lapse may hold of a class
KEPT_MAX = 256
LISTS_MAX = 32
LISTS_SLOTS_MAX = 1 << 20  # slots in all eligible lists that are kept for their proofs


def slot_offer(offer: Offer, pool: Hash32) -> SlotOffer | None:
    return next((slot for slot in offer.slots if slot.pool.id() == pool), None)


def free_slots(state: StateTables, provider: Provider, pool: Hash32) -> int:
    """Run slots without a lease of ours that others did not take at the last heartbeat, within the
    provider's window. If others took some since, the provider declines.
    """
    slot = slot_offer(provider.offer, pool) if provider.offer else None
    if slot is None:
        return 0
    held = _held_in(state, state.leases_in_slots.get(provider.owner) or (), pool)
    return max(0, _most_held(state, provider, slot, pool) - held)


def work_window(state: StateTables, owner: Address, pool: Hash32) -> int:
    """PROTOCOL §4, Windows."""
    for window in state.work_windows.get(owner) or ():
        if window.pool == pool:
            return window.slots
    return WORK_WINDOW_FIRST


def _most_held(state: StateTables, provider: Provider, slot: SlotOffer, pool: Hash32) -> int:
    left = slot.count - provider.taken_elsewhere(pool)
    return min(left, work_window(state, provider.owner, pool))


def _held_in(state: StateTables, held: tuple[Hash32, ...], pool: Hash32) -> int:
    return sum(1 for lease in held if state.leases[lease].assignment.message.pool == pool)


def _room(state: StateTables, provider: Provider, slot: SlotOffer, pool: Hash32) -> int:
    """Leases are looked at only if they are enough to fill the slots. To a rental on demand, the
    run slots of spot rentals are free: so at most one waits for each of them (PROTOCOL 12.42).
    """
    held = state.leases_in_slots.get(provider.owner) or ()
    most = _most_held(state, provider, slot, pool)
    if most > len(held) or most > _held_in(state, held, pool):
        return rows.FREE | rows.ROOM
    if not slot.has_two_prices:
        return 0
    others = tuple(lease for lease in held if not _is_spot(state, lease))
    return rows.ROOM if most > _held_in(state, others, pool) else 0


def _is_spot(state: StateTables, lease: Hash32) -> bool:
    return state.jobs[state.leases[lease].job_id].submission.spec.spot


def _changes_rows(before: Provider, after: Provider) -> bool:
    is_same = (
        before.offer is after.offer
        and before.alive_until == after.alive_until
        and before.unsecured_until == after.unsecured_until
        and before.elsewhere == after.elsewhere
    )
    return not is_same or before.index != after.index or before.owner != after.owner


def _changes_trust(before: Trusts, after: Trusts) -> bool:
    """Most lines of the log name no audit."""
    return before.by_class is not after.by_class


def _changes_record(before: Trusts, after: Trusts) -> bool:
    """Strikes, or the lasting part of the rank."""
    return _changes_trust(before, after) or rank.lasting_ppm(before) != rank.lasting_ppm(after)


class MarketIndex:
    """The buckets (offers in columns) by pool, and what orders need to know about a class."""

    def __init__(self, state: StateTables) -> None:
        self._state = state
        self.buckets: dict[Hash32, Bucket] = {}
        self.pools: dict[Hash32, Pool] = {}
        # the classes in which a provider has rows
        self._classes: dict[Address, tuple[Hash32, ...]] = {}
        self._hosts: dict[Address, frozenset[tuple[Hash32, Hash32]]] = {}  # pool and host
        self._host_owners: Counter[tuple[Hash32, Hash32]] = Counter()
        self._class_sets: dict[tuple[Hash32, ...], tuple[Hash32, ...]] = {}
        self._left: deque[Hash32] = deque()  # classes that a provider left, the oldest first
        self._staked: dict[Hash32, _Staked] = {}
        self._withdrawn: frozenset[Address] = frozenset()  # their newest offer is a withdrawal
        self._kept: dict[tuple[Hash32, ...], _Kept] = {}
        self._lists: dict[Hash32, EligibleList] = {}  # by root, the one used last at the end
        self._trust_roots: dict[Hash32, Hash32] = {}
        self._block = BlockNumber(0)
        self._changed = (
            state.providers.follow(_changes_rows),
            state.trust.follow(_changes_record),
            state.attestations.follow(),
        )
        self._changed_room = (state.leases_in_slots.follow(), state.work_windows.follow())
        self._changed_hosts, self._changed_trust = (
            state.pool_slots.follow(),
            state.trust.follow(_changes_trust),
        )

    def refresh(self) -> None:
        for changed in self._changed:
            if changed:
                for owner in drained(changed):
                    self._derive(owner)
        for changed in self._changed_room:
            if changed:
                for owner in drained(changed):
                    self._derive_free(owner)
        block = self._state.own.block
        if self._changed_hosts or block != self._block:
            self._changed_hosts.clear()
            self._block = block
            for pool, bucket in self.buckets.items():
                if bucket.has_failed():
                    self.staked(pool)

    def bucket(self, pool: Hash32) -> Bucket | None:
        self.refresh()
        bucket = self.buckets.get(pool)
        if bucket is not None:
            bucket.has_staked = bool(self.staked(pool))
        return bucket

    # ---- rows

    def _derive(self, owner: Address) -> None:
        provider = self._state.providers.get(owner)
        offer = provider.offer if provider is not None else None
        is_withdrawn = offer is not None and offer.expires == WITHDRAWN
        if is_withdrawn != (owner in self._withdrawn):
            self._withdrawn = self._withdrawn ^ {owner}
        before = self._classes.get(owner, ())
        if provider is None or offer is None:
            now: tuple[Hash32, ...] = ()
        else:
            now = tuple(slot.pool.id() for slot in offer.slots)
            for slot, pool in zip(offer.slots, now, strict=True):
                bucket = self.buckets.get(pool)
                if bucket is None:
                    bucket = self.buckets[pool] = Bucket()
                    self.pools[pool] = slot.pool
                row = self._row(provider, offer, slot, pool)
                bucket.put(owner, row)
                if slot.has_two_prices:
                    bucket.put(rows.spot_row(owner), _spot_row(row, slot, provider))
                else:
                    bucket.remove(rows.spot_row(owner))
        slots = offer.slots if now and offer is not None else ()
        self._count_hosts(owner, frozenset((item.pool.id(), item.host.digest()) for item in slots))
        if before != now:
            for pool in before:
                if pool not in now:
                    self.buckets[pool].remove(owner)
                    self.buckets[pool].remove(rows.spot_row(owner))
                    self._left.append(pool)
            if len(self._class_sets) >= CLASS_SETS_MAX:
                self._class_sets.clear()
            # one tuple for all that offer the same
            self._classes[owner] = self._class_sets.setdefault(now, now)
            self._forget_idle()

    def _count_hosts(self, owner: Address, now: frozenset[tuple[Hash32, Hash32]]) -> None:
        before = self._hosts.get(owner, frozenset())
        if now == before:
            return
        self._host_owners.subtract(before - now)
        self._host_owners.update(now - before)
        for gone in before - now:
            if not self._host_owners[gone]:
                del self._host_owners[gone]
        self._hosts[owner] = now

    def owners_like(self, pool: Hash32, accept: Accept) -> int:
        """How many owners offer the host of an Accept in the pool, live or not."""
        self.refresh()
        return self._host_owners[pool, accept.host]

    def _forget_idle(self) -> None:
        """Classes without offers. Those for which jobs wait are checked again later."""
        for _ in range(min(len(self._left) - IDLE_MAX, IDLE_LOOKS)):
            pool = self._left.popleft()
            bucket = self.buckets.get(pool)
            if bucket is None:
                continue
            if bucket.is_idle():
                del self.buckets[pool], self.pools[pool]
                self._kept.pop((pool,), None)
                self._staked.pop(pool, None)
            elif not len(bucket):
                self._left.append(pool)

    def _derive_free(self, owner: Address) -> None:
        """Assignments, their ends and windows change nothing else."""
        provider = self._state.providers.get(owner)
        if provider is None or provider.offer is None:
            return
        for slot, pool in zip(provider.offer.slots, self._classes[owner], strict=True):
            room = _room(self._state, provider, slot, pool)
            self.buckets[pool].set_room(owner, room)
            if slot.has_two_prices:
                self.buckets[pool].set_room(rows.spot_row(owner), room & rows.FREE)

    def _row(self, provider: Provider, offer: Offer, slot: SlotOffer, pool: Hash32) -> Row:
        owner, price = provider.owner, slot.price
        bits = _fixed_bits(offer.kinds, fits.sandboxes_in(slot, offer.sandboxes))
        if price > 0:
            bits |= rows.PRICED
        bits |= 0 if slot.is_spot else rows.ON_DEMAND
        bits |= 0 if slot.has_two_prices else rows.SPOT
        bits |= _room(self._state, provider, slot, pool)
        if owner in self._staked.get(pool, NOBODY_STAKED).owners:
            bits |= rows.STAKED
        if offer.cached:
            bits |= rows.CACHING
        if offer.images:
            bits |= rows.LISTED
        if EVERY_HOST in offer.egress:
            bits |= rows.OPEN_EGRESS
        trusts = self._state.trust.get(owner)
        if trusts is not None and any(trust.strikes for trust in trusts.by_class.values()):
            bits |= rows.STRUCK
        until = 0 if provider.unsecured_until else min(provider.alive_until, offer.expires)
        # A row is live before `until`, and is derived again at the next heartbeat.
        level = attestation_levels.level_of(self._state, provider, slot, UnixSeconds(until - 1))
        if level:
            bits |= rows.ATTESTED
        return Row(
            key=rows.key_of(price, provider.index),
            bits=bits,
            until=until,
            memory=slot.memory_bytes,
            cpu_millis=slot.cpu_millis,
            vram=slot.vram_bytes,
            gpus=slot.pool.gpus,
            model=rows.model_number(slot.gpu.lower()),
            capability=gpu_match.capability_of(slot.host),
            scratch=slot.scratch_bytes,
            output=slot.output_bytes,
            inputs=slot.input_bytes,
            cuda=slot.cuda,
            store=offer.store_bytes,
            bandwidth=offer.bandwidth,
            images=offer.images,
            egress=offer.egress,
            record=rank.slot_ppm(trusts, level),
        )

    # ---- stake, eligible slots and trust of a class

    def staked(self, pool: Hash32) -> frozenset[Address]:
        block, listed = self._state.own.block, self._state.pool_slots.get(pool)
        known = self._staked.get(pool)
        if known is not None and known.listed is listed and known.first <= block < known.after:
            return known.owners
        slots = listed.slots if listed is not None else ()
        counts = Counter(slot.owner for slot in slots if slot.is_active(block))
        owners = frozenset(counts)
        turns = [
            edge for slot in slots for edge in (slot.active_from, slot.active_until) if edge > block
        ]
        self._staked[pool] = _Staked(
            listed, block, min(turns, default=1 << 62), dict(counts), owners
        )
        before = known.owners if known is not None else frozenset()
        bucket = self.buckets.get(pool)
        if bucket is not None and before != owners:
            if bool(before) != bool(owners):
                bucket.forget_failures()
            for owner in before ^ owners:
                if owner in bucket:
                    self._derive(owner)
        return owners

    def stake_slots(self, pool: Hash32) -> dict[Address, int]:
        if pool not in self._state.pool_slots:
            return {}  # nothing is cached for classes that only an offer names
        self.staked(pool)
        return self._staked[pool].counts

    def eligible(self, *pools: Hash32) -> EligibleList:
        """All slots that are active on chain, but those of owners that withdrew (PROTOCOL §5)."""
        self.refresh()
        owners = self.owners_in(pools)
        staked = tuple(self._staked[pool] for pool in pools)
        gone = self._withdrawn & owners
        kept = self._kept.get(pools)
        is_same = kept is not None and all(map(is_, kept.staked, staked))
        if kept is not None and is_same and kept.withdrawn == gone:
            return kept.eligible
        every = joined([it.listed.slots if it.listed is not None else () for it in staked])
        block = self._state.own.block
        slots = tuple(slot for slot in every if slot.owner not in gone and slot.is_active(block))
        like = kept.eligible if kept is not None else None
        eligible = self._keep_list(EligibleList(slots, len(every), like))
        self._kept.pop(pools, None)
        while len(self._kept) >= max(1, min(KEPT_MAX, LISTS_SLOTS_MAX // (eligible.length + 1))):
            del self._kept[next(iter(self._kept))]
        self._kept[pools] = _Kept(staked, gone, eligible)
        return eligible

    def owners_in(self, pools: tuple[Hash32, ...]) -> frozenset[Address]:
        """With stake in one of them at least."""
        if len(pools) == 1:
            return self.staked(pools[0])
        return frozenset().union(*(self.staked(pool) for pool in pools))

    def list_of(self, root: Hash32) -> EligibleList:
        """Cached, because jobs acknowledged at about the same time share a list."""
        found = self._lists.pop(root, None)
        if found is not None:
            self._lists[root] = found  # moves it to the end, as the one used last
            return found
        snapshot = self._state.eligible_snapshots[root]
        slots = self.slots_of(snapshot)
        return self._keep_list(EligibleList(snapshot.slots_in(slots), len(slots)))

    def slots_of(self, snapshot: EligibleSnapshot) -> tuple[StakeSlot, ...]:
        """Every place of its lists, also those that may not be drawn."""
        lists = self._state.slot_lists
        return joined([lists[number].slots for number in snapshot.list_numbers])

    def withdrawals(self, pools: tuple[Hash32, ...]) -> tuple[WithdrawalEvidence, ...]:
        providers = self._state.providers
        gone = (providers[owner] for owner in sorted(self._withdrawn & self.owners_in(pools)))
        return tuple(
            WithdrawalEvidence(
                Envelope(item.offer.signed(), item.offer_signature), item.operator_key
            )
            for item in gone
            if item.offer is not None and item.offer_signature is not None
        )

    def _keep_list(self, made: EligibleList) -> EligibleList:
        self._lists[made.root] = made
        while len(self._lists) > max(1, min(LISTS_MAX, LISTS_SLOTS_MAX // (made.length + 1))):
            del self._lists[next(iter(self._lists))]
        return made

    def trust_root(self, trust_class: Hash32) -> Hash32:
        """`Ack.stateRoot`: the Merkle root over the trust of all providers in one job class."""
        if self._changed_trust:
            self._changed_trust.clear()
            self._trust_roots.clear()
        root = self._trust_roots.get(trust_class)
        if root is None:
            root = trust_root(self._state.trust, trust_class)
            self._trust_roots[trust_class] = root
        return root


def _spot_row(row: Row, slot: SlotOffer, provider: Provider) -> Row:
    bits = row.bits & ~(rows.PRESENT | rows.ON_DEMAND | rows.ROOM) | rows.SPOT
    return row._replace(key=rows.key_of(slot.spot, provider.index), bits=bits)


@lru_cache(maxsize=256)
def _fixed_bits(kinds: tuple[JobKind, ...], sandboxes: tuple[str, ...]) -> int:
    bits = rows.PRESENT | sandbox_bits(sandboxes)
    bits |= rows.REGISTRY if fits.takes_registry_images(sandboxes) else 0
    for kind in kinds:
        bits |= 1 << rows.KIND_BIT + kind
    return bits


def drained(changed: set[B]) -> tuple[B, ...]:
    """Clears the set as a whole, because a set that was large once stays slow to pop from."""
    found = tuple(changed)
    changed.clear()
    return found
