"""Takes offers, and chooses the provider and the pool for a job, by the columns of
`market_index`.
"""

from itertools import islice

import numpy as np
from msgspec import Struct

from quorate_attestation import fits as fitting
from quorate_attestation.catalogue import contradiction
from quorate_coordinator.core.matching import fetched_content
from quorate_coordinator.core.matching.fetched_content import prefixes_of
from quorate_coordinator.core.model import market_index, row
from quorate_coordinator.core.model.columns import Bucket, Positions
from quorate_coordinator.core.model.entities import Job, PoolSlots, Provider, SlotsElsewhere
from quorate_coordinator.core.model.events import OfferReceived
from quorate_coordinator.core.model.needs import busy_or_not, free, needs_of, staked
from quorate_coordinator.core.model.row import Needs
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import POOLS_MAX
from quorate_protocol.messages import job_spec as job_rules
from quorate_protocol.messages.offer import WITHDRAWN, Offer, SlotOffer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation import probation, rank
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Address,
    Comparator,
    Hash32,
    Label,
    Price,
    UnixSeconds,
)
from quorate_protocol.values import replace

# How many of the cheapest that fit are scored. Their best is within 0.1 % of the best of all
# (measured at 10^6 offers).
CANDIDATES_MAX = 64
CLASSES_LOOKED_MAX = 256  # for one order or plan, those of most owners first
JITTER_PPM = 10_000  # prices within 1 % count as equal
CACHED_PPM = 50_000  # a provider that has the image or an input need not fetch it again


class Candidate(Struct, frozen=True):
    """A provider that fits, with its price in this class."""

    provider: Provider
    price: Price


def on_offer(context: StepContext, event: OfferReceived) -> None:
    """Takes a newer offer. It does not make the provider alive: only heartbeats do."""
    offer = event.offer.offer
    provider = registered(context, offer.provider, event.key)
    known = provider.offer
    if known is not None and offer.seq <= known.seq:
        if offer == known:
            return
        raise Refused(Code.STALE, f"offer: seq {offer.seq} is not above {known.seq}")
    if offer.expires != WITHDRAWN:
        check_hosts(offer)
        check_stake(context.state, offer)
    context.state.providers[provider.owner] = replace(
        provider,
        offer=offer,
        offer_signature=event.offer.signature.sig,
        # A heartbeat without an offer did not say which of these slots are free.
        alive_until=provider.alive_until if known is not None else UnixSeconds(0),
        elsewhere=_not_reported(provider, known, offer) if known is not None else (),
    )


def check_hosts(offer: Offer) -> None:
    """Raises Refused for a GPU that the catalogue knows with other figures (2.19)."""
    for slot in offer.slots:
        host = slot.host
        said = contradiction(slot.pool.gpu, host.capability, host.sm_count)
        if said and not slot.pool.mig_profile:
            raise Refused(Code.MALFORMED, f"offer.slots: {said}")


def _not_reported(provider: Provider, known: Offer, offer: Offer) -> tuple[SlotsElsewhere, ...]:
    """Added run slots count as used by others: the last heartbeat did not report them."""
    found = []
    for slot in offer.slots:
        pool = slot.pool.id()
        before = market_index.slot_offer(known, pool)
        added = slot.count - (before.count if before else 0)
        count = provider.taken_elsewhere(pool) + max(0, added)
        if count > 0:
            found.append(SlotsElsewhere(pool, count))
    return tuple(found)


def check_stake(state: State, offer: Offer) -> None:
    """A class needs as many active stake slots as run slots. An owner on probation may offer one
    run slot without any.
    """
    provider = state.providers[offer.provider]
    if (
        provider.is_on_probation
        and sum(slot.count for slot in offer.slots) <= probation.RUN_SLOTS_MAX
    ):
        _check_probation(state, provider)
        return
    for slot in offer.slots:
        staked = state.market.stake_slots(slot.pool.id()).get(offer.provider, 0)
        if slot.count > staked:
            raise Refused(
                Code.OVER_STAKE,
                f"offer: {slot.count} run slots of class 0x{slot.pool.id().hex()[:16]}, and at "
                f"block {state.own.block} their owner has {staked} active stake slots; open more, "
                "or offer fewer run slots",
            )


def _check_probation(state: State, newcomer: Provider) -> None:
    """One live offer from a network, and `OWNERS_MAX` in all. Its cost is linear in owners, and
    only offers of owners on probation pay it.
    """
    others = [
        it
        for it in state.providers.values()
        if it.is_on_probation
        and it.owner != newcomer.owner
        and it.alive_until > 0
        and it.offer is not None
        and it.offer.expires > state.own.block_time
    ]
    if any(it.network == newcomer.network for it in others):
        raise Refused(
            Code.OVER_STAKE,
            "offer: another owner on probation offers a run slot from this network; open a stake "
            "slot",
        )
    if len(others) >= probation.OWNERS_MAX:
        raise Refused(
            Code.OVER_STAKE,
            f"offer: {probation.OWNERS_MAX} owners on probation have an offer; open a stake "
            "slot, or try later",
        )


def registered(context: StepContext, owner: Address, key: Address) -> Provider:
    """Raises Refused unless `key` is its operator key."""
    provider = context.state.providers.get(owner)
    if provider is None:
        raise Refused(Code.NOT_REGISTERED, f"provider 0x{owner.hex()}: register in Stakes first")
    if key != provider.operator_key:
        raise Refused(
            Code.WRONG_SIGNER,
            f"signed by 0x{key.hex()}, not by the operator key of 0x{owner.hex()}",
        )
    return provider


def free_slots(context: StepContext, provider: Provider, pool: Hash32) -> int:
    return market_index.free_slots(context.state, provider, pool)


def owners_of(context: StepContext, *pools: Hash32) -> frozenset[Address]:
    return context.state.market.owners_in(pools)


# -------------------------------------------------------------------------------------- who runs it


def choose(context: StepContext, job: Job, wanted: int = 1) -> list[Candidate]:
    """The best free providers for a job now, no two of one owner or network; fewer than `wanted` if
    there are no more.

    Of the 64 cheapest that fit, it takes those with the lowest score: price × (1 + jitter + record
    − cached). Nobody can foresee the jitter. The record is `rules.reputation.rank`.
    """
    bucket = context.state.market.bucket(job.pool.id())
    if bucket is None:
        return []
    chance = int.from_bytes(hash_tuple(context.random, job.id)[:8], "big")
    found = _cheapest(context, job, bucket, chance)
    if not found.size:
        return []
    scores = bucket.prices_at(found) * _weights(context, job, bucket, found, chance)
    if wanted == 1:
        return [_candidate(context, bucket, int(found[scores.argmin()]))]
    return _distinct(context, bucket, found[scores.argsort(kind="stable")].tolist(), wanted)


def _cheapest(context: StepContext, job: Job, bucket: Bucket, chance: int) -> Positions:
    """Owners on probation get only unverified jobs that no owner with stake can run now, and no
    rentals, because nothing is vouched to them. Spot rentals end only where nothing else is free.
    """
    needs, most = needs_of(job.submission.spec), job.order.max_price_per_hour
    place = chance & row.SPREAD_MASK

    def search(wanted: Needs) -> Positions:
        return bucket.cheapest(wanted, most, context.at, place, CANDIDATES_MAX, job.refused_by)

    if job.is_rental:
        found = search(free(staked(needs)))
        return found if found.size or job.submission.spec.spot else search(staked(needs))
    found = search(staked(needs) if bucket.has_staked else needs)
    if found.size or not bucket.has_staked or job.ack.message.rule is not Label.UNVERIFIED:
        return found
    found = search(needs)
    known = context.state.providers
    on_probation = [known[owner].is_on_probation for owner in bucket.owners_at(found)]
    kept: Positions = found[np.array(on_probation, dtype=bool)]
    return kept


def _candidate(context: StepContext, bucket: Bucket, position: int) -> Candidate:
    owner, price = bucket.row_of(position)
    return Candidate(context.state.providers[owner], Price(price))


def _distinct(
    context: StepContext, bucket: Bucket, ranked: list[int], wanted: int
) -> list[Candidate]:
    chosen: list[Candidate] = []
    networks: set[Hash32] = set()
    for position in ranked:
        one = _candidate(context, bucket, position)
        if one.provider.network not in networks:
            networks.add(one.provider.network)
            chosen.append(one)
            if len(chosen) == wanted:
                break
    return chosen


def _weights(
    context: StepContext, job: Job, bucket: Bucket, found: Positions, chance: int
) -> Positions:
    """In ppm of the price."""
    mixed = bucket.numbers_at(found)
    mixed += np.uint64(chance)
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT_29
    mixed *= _MIX_2
    mixed >>= _SHIFT_32
    mixed %= _JITTER
    mixed += _ONE
    weights: Positions = mixed.view(np.int64)  # far below 2^63
    weights += bucket.records_at(found)
    remarkable = (bucket.bits_at(found) & _REMARKABLE).nonzero()[0]
    if remarkable.size:
        wanted = frozenset(prefixes_of(job.submission.spec))
        for index, owner in zip(
            remarkable.tolist(), bucket.owners_at(found[remarkable]), strict=True
        ):
            weights[index] += _record_of(context, owner, wanted)
    return weights


_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # SplitMix64's
_SHIFT_29, _SHIFT_32 = np.uint64(29), np.uint64(32)
_JITTER, _ONE = np.uint64(JITTER_PPM), np.uint64(PPM_ONE)
_REMARKABLE = np.uint64(row.STRUCK | row.CACHING)


def _record_of(context: StepContext, owner: Address, wanted: frozenset[bytes]) -> int:
    """In ppm of the price. Only content that it has fetched before counts."""
    trusts, offer = context.state.trust.get(owner), context.state.providers[owner].offer
    strikes = 0 if trusts is None else rank.strikes_ppm(trusts, context.at)
    claimed = () if offer is None else offer.cached
    is_cached = fetched_content.has_cached(context, owner, claimed, wanted)
    return strikes - CACHED_PPM * is_cached


# --------------------------------------------------------------------------------- which class fits


def fits(offer: Offer, slot: SlotOffer, spec: job_rules.JobSpec) -> bool:
    return fitting.fits(spec, slot, offer)


def class_for(
    context: StepContext,
    wanted: Hash32,
    spec: job_rules.JobSpec,
    price_max: Price,
    is_thin_too: bool = False,
) -> Hash32 | None:
    """A pool with a fitting live offer, busy or not.

    A client pays for a whole run slot, so classes with fewer GPUs in a slot come first, then those
    with most owners.

    An order that names no class gets no class with few owners, unless `is_thin_too`. One owner may
    have created such a class, and would decide there which results are right.
    """
    market, is_gpu = context.state.market, spec.resources.gpu is not None
    market.refresh()
    named = [wanted] if wanted != ZERO_HASH else list(market.buckets)
    known = [
        pool for pool in named if pool in market.buckets and market.pools[pool].is_gpu == is_gpu
    ]
    needs, looked = busy_or_not(needs_of(spec)), 0

    def order(item: Hash32) -> tuple[int, int, Hash32]:
        return market.pools[item].gpus, -len(owners_of(context, item)), item

    for pool in sorted(known, key=order):
        if wanted == ZERO_HASH and not is_thin_too and not is_of_many(context, pool):
            continue
        looked += 1
        if looked > CLASSES_LOOKED_MAX:
            return None
        bucket = market.bucket(pool)
        if bucket is not None and bucket.first(needs, price_max, context.at).size:
            return pool
    return None


def auditing_pools(
    context: StepContext, pool: Hash32, wanted: Hash32, spec: job_rules.JobSpec, price_max: Price
) -> tuple[Hash32, ...]:
    """From which auditors of a primary of `pool` are drawn, in order of their ids.

    Within a tolerance these are the pools that fit by what a stranger knows of them, and have a
    fitting live offer: those with most owners, and the primary's.
    """
    market = context.state.market
    if wanted != ZERO_HASH or spec.compare.comparator is Comparator.EXACT:
        return (pool,)
    known = [it.id() for it in fitting.pools_that_fit(spec, market.pools.values())]
    if pool not in known:
        return (pool,)  # only offers say that it fits
    needs = busy_or_not(needs_of(spec))

    def has_offer(item: Hash32) -> bool:
        bucket = market.bucket(item)
        return bucket is not None and bool(bucket.first(needs, price_max, context.at).size)

    ranked = sorted((-len(owners_of(context, item)), item) for item in known if item != pool)
    looked = (item for owners, item in ranked[:CLASSES_LOOKED_MAX] if owners)
    others = (item for item in looked if has_offer(item))
    return tuple(sorted((pool, *islice(others, POOLS_MAX - 1))))


def is_of_many(context: StepContext, *pools: Hash32) -> bool:
    """Enough owners have had stake in them for long enough (PROTOCOL §2, Job class)."""
    limits = context.rules.limits
    since = [context.state.pool_slots.get(pool, PoolSlots()).since for pool in pools]
    old = (
        owner
        for owner in owners_of(context, *pools)
        if max(0, *(context.at - times.get(owner, context.at) for times in since))
        >= limits.class_owner_age
    )
    return sum(1 for _ in islice(old, limits.class_owners_min_any)) >= limits.class_owners_min_any


def offers_for(
    context: StepContext, pool: Hash32, spec: job_rules.JobSpec, price_max: Price, is_free: bool
) -> tuple[int, Price | None]:
    """How many fit, and the cheapest one's price. Busy ones count too unless `is_free`."""
    bucket = context.state.market.bucket(pool)
    if bucket is None:
        return 0, None
    needs = needs_of(spec) if is_free else busy_or_not(needs_of(spec))
    first = bucket.prices_at(bucket.cheapest(needs, price_max, context.at, 0, 1)).tolist()
    return bucket.count(needs, price_max, context.at), Price(first[0]) if first else None


def bandwidths(
    context: StepContext, pool: Hash32, spec: job_rules.JobSpec, price_max: Price, limit: int
) -> list[int]:
    """Of the cheapest live offers that fit, busy or not."""
    bucket = context.state.market.bucket(pool)
    if bucket is None:
        return []
    found = bucket.cheapest(busy_or_not(needs_of(spec)), price_max, context.at, 0, limit)
    offered = (context.state.providers[owner].offer for owner in bucket.owners_at(found))
    return [offer.bandwidth for offer in offered if offer is not None]


def second_price(
    context: StepContext, pools: tuple[Hash32, ...], spec: job_rules.JobSpec
) -> Price | None:
    """Of live offers that fit, busy or not; None if there are not two owners."""
    lowest: dict[Address, int] = {}
    for pool in pools:
        bucket = context.state.market.bucket(pool)
        if bucket is None:
            continue
        needs = busy_or_not(needs_of(spec))
        needs = staked(needs) if bucket.has_staked else needs
        found = bucket.cheapest(needs, row.PRICE_LIMIT, context.at, 0, 2)
        for owner, price in zip(
            bucket.owners_at(found), bucket.prices_at(found).tolist(), strict=True
        ):
            lowest[owner] = min(price, lowest.get(owner, price))
    prices = sorted(lowest.values())
    return Price(prices[1]) if len(prices) > 1 else None


def median_price(context: StepContext, pool: Hash32) -> Price:
    """Of live offers, busy or not; 0 if there are none."""
    bucket, needs = (context.state.market.bucket(pool), Needs(row.PRESENT | row.PRICED, 0, 0))
    count = bucket.count(needs, row.PRICE_LIMIT, context.at) if bucket is not None else 0
    if bucket is None or not count:
        return Price(0)
    lower_half = bucket.prices_at(
        bucket.cheapest(needs, row.PRICE_LIMIT, context.at, 0, (count + 1) // 2)
    )
    return Price(int(lower_half.max()))


_ANYBODY = Needs(row.PRESENT, 0, 0)


def live_slots(context: StepContext, pool: Hash32, limit: int) -> list[SlotOffer]:
    """Those of the pool's cheapest live offers."""
    bucket = context.state.market.bucket(pool)
    if bucket is None:
        return []
    found = bucket.cheapest(_ANYBODY, row.PRICE_LIMIT, context.at, 0, limit)
    offered = (context.state.providers[owner].offer for owner in bucket.owners_at(found))
    slots = (market_index.slot_offer(offer, pool) for offer in offered if offer is not None)
    return [slot for slot in slots if slot is not None]
