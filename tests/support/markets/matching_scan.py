"""Matching by plain scans over all offers and all jobs.

Tests compare the columns and the queue of the real matching with it.
"""

from collections import Counter

from quorate_coordinator.core.jobs.job_queue import deadline_of
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    Decided,
    Job,
    Matching,
    Provider,
    Running,
)
from quorate_coordinator.core.model.market_index import slot_offer
from quorate_coordinator.core.model.row import SPREAD_MASK, key_of
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.rules.reputation import rank
from quorate_protocol.units import Address, Hash32, Round, UnixSeconds

WORD = (1 << 64) - 1


def choose(context: StepContext, job: Job, wanted: int = 1) -> list[offers.Candidate]:
    """Chooses like `offers.choose`."""
    chance = int.from_bytes(hash_tuple(context.random, job.id)[:8], "big")
    found = [item for item in feasible(context, job) if item.provider.owner not in job.refused_by]

    def by_price(item: offers.Candidate) -> tuple[int, int]:
        return item.price, (key_of(0, item.provider.index) - chance) & SPREAD_MASK

    cheapest = sorted(found, key=by_price)[: offers.CANDIDATES_MAX]
    ranked = sorted(
        cheapest, key=lambda item: item.price * weight(context, job, item.provider, chance)
    )
    chosen: list[offers.Candidate] = []
    for item in ranked:
        if len(chosen) < wanted and item.provider.network not in {
            other.provider.network for other in chosen
        }:
            chosen.append(item)
    return chosen


def feasible(context: StepContext, job: Job) -> list[offers.Candidate]:
    """Returns every provider that could run the job now."""
    order, pool = job.submission.order.message, job.pool.id()
    hosts, block = context.state.pool_slots.get(pool), context.state.own.block
    staked = {slot.owner for slot in hosts.slots if slot.is_active(block)} if hosts else set()
    found = []
    for provider in context.state.providers.values():
        slot = slot_offer(provider.offer, pool) if provider.offer else None
        if (
            slot is None
            or provider.offer is None
            or not provider.is_alive(context.at)
            or provider.unsecured_until
            or (staked and provider.owner not in staked)
        ):
            continue
        if not 0 < slot.price <= order.max_price_per_hour or not offers.fits(
            provider.offer, slot, job.submission.spec
        ):
            continue
        if offers.free_slots(context, provider, pool) > 0:
            found.append(offers.Candidate(provider, slot.price))
    return found


def weight(context: StepContext, job: Job, provider: Provider, chance: int) -> int:
    """Returns the factor by which a provider's price is multiplied, in millionths."""
    mixed = ((key_of(0, provider.index) & SPREAD_MASK) + chance) * 0xBF58476D1CE4E5B9 & WORD
    mixed = (mixed ^ (mixed >> 29)) * 0x94D049BB133111EB & WORD
    trusts, offer, spec = (
        context.state.trust.get(provider.owner),
        provider.offer,
        job.submission.spec,
    )
    digests = {image_digest(spec.image), *(cid_parts(item.cid)[1] for item in spec.inputs)}
    wanted = {digest[:8] for digest in digests}
    fetched = set(context.state.fetched.get(provider.owner) or ())
    cached = offer is not None and bool(wanted & set(offer.cached) & fetched)
    return (
        rank.rank_ppm(trusts, context.at, level=0)
        + (mixed >> 32) % offers.JITTER_PPM
        - offers.CACHED_PPM * cached
    )


def _waits_for(phase: Running, owner: Address) -> bool:
    return any(
        place.assignment_hash is None and place.slot.owner == owner for place in phase.places
    )


class ScanQueue:
    """Acts like `JobQueue`, but looks at every live job each time and tries every waiting job."""

    def __init__(self, state: State, limits: Limits) -> None:
        self._state, self._limits = state, limits
        self._aside: set[Hash32] = set()

    def _live(self) -> list[Job]:
        jobs = [self._state.jobs[job_id] for job_id in self._state.live]
        return sorted(jobs, key=lambda job: (job.created_at, job.id))

    def kept_for(self, owner: Address) -> Job | None:
        found = [
            job
            for job in self._live()
            if isinstance(job.phase, Running) and _waits_for(job.phase, owner)
        ]
        running = self._running()
        return min(
            found,
            key=lambda job: (running[job.submission.order.message.client], job.created_at, job.id),
            default=None,
        )

    def _running(self) -> Counter[Address]:
        held = (lease for lease in self._state.leases.values() if lease.occupies_slot)
        return Counter(
            self._state.jobs[lease.job_id].submission.order.message.client for lease in held
        )

    def _may_begin(self, client: Address, running: Counter[Address]) -> bool:
        window = self._state.client_windows.get(client)
        return window is None or running[client] < window

    def rounds(self) -> list[Round]:
        return sorted(
            {job.phase.round for job in self._live() if isinstance(job.phase, AwaitingRound)}
        )

    def awaiting(self, number: Round) -> list[Job]:
        return [
            job
            for job in self._live()
            if isinstance(job.phase, AwaitingRound) and job.phase.round == number
        ]

    def due(self, at: UnixSeconds) -> list[Job]:
        return [
            job
            for job in self._live()
            if (deadline := deadline_of(self._state, job, self._limits)) is not None
            and deadline <= at
        ]

    def releasable(self, at: UnixSeconds) -> list[Job]:
        held = [
            (job.phase.hold_until, job.id)
            for job_id in self._state.held
            if isinstance((job := self._state.jobs[job_id]).phase, Decided)
        ]
        return [self._state.jobs[job_id] for until, job_id in sorted(held) if until <= at]

    def next(self, at: UnixSeconds) -> Job | None:
        running = self._running()
        waiting = [
            job
            for job in self._live()
            if isinstance(job.phase, Matching)
            and job.phase.not_before <= at
            and job.id not in self._aside
            and self._may_begin(job.submission.order.message.client, running)
        ]
        clients = {job.id: job.submission.order.message.client for job in waiting}
        return min(
            waiting,
            key=lambda job: (running[clients[job.id]], job.created_at, job.id),
            default=None,
        )

    def park(self, job: Job) -> bool:
        """Puts the job aside until `put_back`. It is then tried in every step."""
        self._aside.add(job.id)
        return True

    def set_aside(self, job: Job) -> None:
        self._aside.add(job.id)

    def put_back(self, job_ids: list[Hash32]) -> None:
        """Puts all jobs back, whatever `job_ids` names."""
        self._aside.clear()
