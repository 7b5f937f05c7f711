"""The beacon's draw: whether a job is audited, and by whom."""

from collections import Counter

from quorate_coordinator.core import assignment
from quorate_coordinator.core.audit import verdicts
from quorate_coordinator.core.events import RoundAppeared
from quorate_coordinator.core.holds import held_pay
from quorate_coordinator.core.lease import Declined, Lease
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.orders import trust_of
from quorate_coordinator.core.state import (
    NEWEST_ROUND,
    AwaitingRound,
    BeaconUsed,
    Job,
    Place,
    Running,
    drawn_place,
)
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.codec.quick import replace
from quorate_protocol.limits import BEACON_AHEAD_MAX, BEACON_AHEAD_MIN
from quorate_protocol.rules import audit
from quorate_protocol.rules.settlement import pay_of
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Amount,
    Hash32,
    Label,
    Milliseconds,
    Ppm,
    Price,
    Round,
    UnixSeconds,
)

FIRST_AUDITORS = 1
DECLINES_MAX = 2  # outright: then it is asked no more


def newest_round(context: StepContext) -> Round:
    """The newest round that has appeared: by the clock, or by what was seen. A clock that is
    late must not draw by a known round (I9).
    """
    by_clock = (
        max(0, context.at - context.rules.beacon_genesis) // context.rules.limits.beacon_period + 1
    )
    return Round(max(by_clock, context.state.counters.get(NEWEST_ROUND) or 0))


def known_moment(context: StepContext) -> UnixSeconds:
    """Now, by the clock or by the newest round that was seen: with a clock that is late, it is
    later than that says.
    """
    seen = context.state.counters.get(NEWEST_ROUND)
    return max(context.at, context.rules.timing.appears_at(seen)) if seen else context.at


def first_usable_round(context: StepContext, named: Round) -> Round:
    """The primary's round when it lies 2 to 10 periods ahead, else the first that does."""
    now = newest_round(context)
    return (
        named
        if now + BEACON_AHEAD_MIN - 1 <= named <= now + BEACON_AHEAD_MAX
        else Round(now + BEACON_AHEAD_MIN)
    )


def on_round(context: StepContext, event: RoundAppeared, waiting: list[Job]) -> None:
    """Draws for every job that waits for this round, each at the rate of before: what one draw
    releases must not move the next one's.
    """
    if waiting:  # what nobody asked for is no clock
        context.state.counters[NEWEST_ROUND] = max(
            event.round, context.state.counters.get(NEWEST_ROUND) or 0
        )
    beacon = BeaconUsed(event.round, event.signature, event.randomness)
    rates = [audit_ppm(context, job) for job in waiting]
    for job, rate in zip(waiting, rates, strict=True):
        assert isinstance(job.phase, AwaitingRound) and job.phase.round == event.round
        _draw(context, job, job.phase, beacon, rate)


def audit_ppm(context: StepContext, job: Job) -> Ppm:
    """The job's audit rate at the draw; an unwitnessed commit is always audited unless the order
    accepts that.
    """
    if job.batches:
        return job.batches[0].commit_set.message.audit_ppm
    order = job.submission.order.message
    primary = context.state.leases[
        job.leases[-1]
    ]  # nobody else has been assigned since it committed
    provider = context.state.providers[primary.provider]
    whole = Milliseconds(job.submission.spec.max_duration * 1000)
    pay_max = pay_of(order, primary.assignment.message, whole)
    staked = context.state.eligible(job).count_of(provider.owner)
    stakes = audit.Stakeout(
        pay_max, Amount(staked * context.rules.limits.slot_stake), provider.held
    )
    rule = job.ack.message.rule
    if rule is Label.ADAPTIVE and job.witness is None and not order.accept_unwitnessed:
        return Ppm(PPM_ONE)
    return audit.rate_ppm(rule, order.verify_tier, trust_of(context, job, provider.owner), stakes)


def _draw(
    context: StepContext, job: Job, phase: AwaitingRound, beacon: BeaconUsed, rate: Ppm
) -> None:
    if phase.is_again:
        # By the round of before: who may call a draw empty and have another would go on until one
        # suits him (I9).
        beacon = job.beacons[-1]
    else:
        job = context.put(job, beacons=(*job.beacons, beacon))
    seed = audit.seed(beacon.randomness, job.id, job.secret, phase.batch)
    wanted = phase.wanted or (FIRST_AUDITORS if audit.is_audited(seed, rate) else 0)
    if job.held_verdict is not None and not wanted:
        held_pay.not_drawn(context, job)
        return
    running = Running(
        phase.batch,
        len(phase.committed) + wanted,
        phase.committed,
        0,
        beacon,
        (),
        rate,
        phase.is_again,
    )
    job = context.put(job, phase=running)
    context.note(
        job,
        "drawn",
        f"beacon round {beacon.round}: {wanted} further execution{'' if wanted == 1 else 's'}",
    )
    fill(context, job)


def fill(context: StepContext, job: Job) -> None:
    """Draws and assigns until the batch has all its places; nobody left closes it as it is."""
    phase = job.phase
    assert isinstance(phase, Running)
    if phase.beacon is None:
        return
    if len(phase.places) < phase.wanted:
        job = _draw_places(context, job, phase, phase.beacon)
    verdicts.close_if_complete(context, job)


def _draw_places(context: StepContext, job: Job, phase: Running, beacon: BeaconUsed) -> Job:
    seed = audit.seed(beacon.randomness, job.id, job.secret, phase.batch)
    eligible = context.state.eligible(job)
    while len(phase.places) < phase.wanted:
        taken = [place.slot for place in phase.places] + used_slots(context, job)
        drawn = next(audit.draw(seed, job.list_length, eligible, taken, phase.next_attempt), None)
        if drawn is None:
            # Nobody is left in this draw: the batch is what it is.
            return context.put(job, phase=replace(phase, wanted=len(phase.places)))
        place = drawn_place(drawn, context.at)
        phase = replace(phase, places=(*phase.places, place), next_attempt=drawn.attempt + 1)
        job = assign_place(context, context.put(job, phase=phase), place)
        assert isinstance(job.phase, Running)
        phase = job.phase
    return job


def used_slots(context: StepContext, job: Job) -> list[audit.StakeSlot]:
    """Who may not be drawn (again): everybody that had an assignment of this job and did not
    merely postpone, or decline it once.

    Those of closed batches as they were then too: a receipt shows them so, however they are
    registered by now.
    """
    found = [slot for batch in job.batches for slot in batch.slots]
    phase = job.phase
    kept = {place.lease for place in phase.places} if isinstance(phase, Running) else set()
    just_now = set(phase.skipped) if isinstance(phase, Running) else set()
    declined = Counter(
        lease.provider
        for lease in (context.state.leases[item] for item in job.leases)
        if _has_declined(lease)
    )
    for digest in job.leases:
        lease = context.state.leases[digest]
        postponed = isinstance(lease.phase, Declined) and lease.phase.start_by > 0
        is_asked_again = (
            _has_declined(lease)
            and digest not in just_now
            and declined[lease.provider] < DECLINES_MAX
        )
        if digest in kept or postponed or is_asked_again:
            continue
        provider = context.state.providers[lease.provider]
        block = context.state.own.block
        found.append(
            audit.StakeSlot(
                -1, provider.owner, provider.operator_key, provider.payout, provider.network, block
            )
        )
    return found


def _has_declined(lease: Lease) -> bool:
    return isinstance(lease.phase, Declined) and not lease.phase.start_by


def _has_left(context: StepContext, place: Place, host_class: Hash32) -> bool:
    """It closed its last slot of the class since the Ack: whoever exits gets no new Assignments."""
    hosts = context.state.hosts.get(host_class)
    is_closed = hosts is not None and hosts.slots[place.slot.index].active_until != audit.FOREVER
    return is_closed and place.slot.owner not in offers.owners_of(context, host_class)


def assign_place(context: StepContext, job: Job, place: Place) -> Job:
    """Assigns a drawn place; a provider without a free slot keeps it for a while, a dead one is
    skipped on record.
    """
    assert isinstance(job.phase, Running)
    before = job.phase
    provider = context.state.providers[place.slot.owner]
    host_class = job.ack.message.host_class
    slot = offers.slot_offer(provider.offer, host_class) if provider.offer else None
    others = tuple(item for item in before.places if item.attempt != place.attempt)
    patience = place.since + context.rules.limits.decline_ahead_max
    if (
        not provider.is_alive(context.at)
        or slot is None
        or context.at > patience
        or _has_left(context, place, host_class)
    ):
        return context.put(
            job, phase=replace(before, places=others, skipped=(*before.skipped, ZERO_HASH))
        )
    if offers.free_slots(context, provider, host_class) <= 0:
        waiting = replace(place, lease=None, retry_at=UnixSeconds(context.at + 1))
        return context.put(job, phase=replace(before, places=(*others, waiting)))
    price = Price(min(offers.price_of(slot), job.submission.order.message.max_price_per_hour))
    job, lease = assignment.assign(context, job, place.slot, price, before.batch)
    return context.put(
        job,
        phase=replace(
            before, places=(*others, replace(place, lease=lease.hash, retry_at=UnixSeconds(0)))
        ),
    )
