"""Draws by the beacon: whether a job is audited, and which providers execute the audits (PROTOCOL
§5).
"""

from quorate_coordinator.core.audit.assignment import assign, assign_in_vain
from quorate_coordinator.core.audit.trust import trust_of
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model import skips
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    BatchPlace,
    BeaconUsed,
    Job,
    Running,
    SkippedPlace,
)
from quorate_coordinator.core.model.market_index import slot_offer
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import held_pay, payees
from quorate_protocol.limits import ASSIGNMENTS_MAX, DRAW_TRIES, OWNERS_MIN_QUORUM
from quorate_protocol.messages.stake_slot import FOREVER, StakeSlot
from quorate_protocol.rules import audit_draw
from quorate_protocol.rules.settlement import pay_of
from quorate_protocol.units import (
    PPM_ONE,
    Amount,
    Comparator,
    Label,
    Milliseconds,
    Ppm,
    Price,
    UnixSeconds,
)
from quorate_protocol.values import replace

FIRST_AUDITORS = 1
REPEAT_WAITS = 3  # the group is small, and a repeat gets a run slot after all other executions


def audit_ppm(context: StepContext, job: Job) -> Ppm:
    """A job without a witness is always audited, unless its order accepts that."""
    if job.batches:
        return job.batches[0].commit_set.message.audit_ppm
    if job.ack.message.rule is Label.QUORUM_2:  # of a fast job nobody has committed yet
        return Ppm(PPM_ONE)
    order = job.order
    # no other provider was assigned since it committed
    primary = context.state.leases[job.leases[-1]]
    provider = context.state.providers[primary.provider]
    whole = Milliseconds(job.order.max_duration * 1000)
    pay_max = pay_of(order, primary.assignment.message, whole)
    is_staked = context.state.eligible(job).count_of(provider.owner) > 0
    # No other comparator is judged, and where two owners have a machine hardly anything is a fault.
    accept = context.state.accepts[primary.assignment_hash].message
    owners = context.state.market.owners_like(job.ack.message.pool, accept)
    is_judged = order.comparator is Comparator.EXACT and owners >= OWNERS_MIN_QUORUM
    is_at_risk = is_staked and is_judged
    stake = context.rules.limits.slot_stake if is_at_risk else Amount(0)
    held = payees.of(context.state, provider.owner).held
    stakes = audit_draw.CheatingIncentive(pay_max, stake, held)
    rule = job.ack.message.rule
    if rule is Label.ADAPTIVE and job.witness is None and not order.accept_unwitnessed:
        return Ppm(PPM_ONE)
    return audit_draw.rate_ppm(
        rule, order.verify_tier, trust_of(context, job, provider.owner), stakes
    )


def draw(
    context: StepContext, job: Job, phase: AwaitingRound, beacon: BeaconUsed, rate: Ppm
) -> Job:
    """Draws how many auditors the next batch has. `fill_places` then finds them."""
    if phase.is_again:
        # The previous round decides again. A coordinator that could claim an empty draw and take
        # another round could repeat that until a round suits it (I9).
        beacon = job.beacons[-1]
    else:
        job = context.put(job, beacons=(*job.beacons, beacon))
    seed = audit_draw.seed(beacon.randomness, job.id, job.secret, phase.batch)
    wanted = phase.wanted or (FIRST_AUDITORS if audit_draw.is_audited(seed, rate) else 0)
    if job.held_verdict is not None and not wanted:
        return held_pay.finish_without_reexecution(context, job)
    running = Running(
        batch=phase.batch,
        wanted=len(phase.committed) + wanted,
        places=phase.committed,
        next_attempt=DRAW_TRIES if phase.is_again else 0,
        beacon=beacon,
        skipped=phase.skipped,
        audit_ppm=rate,
        is_again=phase.is_again,
    )
    job = context.put(job, phase=running)
    context.note(
        job.id,
        "drawn",
        f"beacon round {beacon.round}: {wanted} "
        f"{'' if job.is_drawing_first else 'further '}execution{'' if wanted == 1 else 's'}",
    )
    return job


def fill_places(context: StepContext, job: Job) -> Job:
    """When no provider is left to draw, the batch wants only the places that it has."""
    phase = job.phase
    assert isinstance(phase, Running) and phase.beacon is not None, "only a drawn batch is filled"
    if len(phase.places) >= phase.wanted:
        return job
    seed = audit_draw.seed(phase.beacon.randomness, job.id, job.secret, phase.batch)
    eligible = context.state.eligible(job)
    while len(phase.places) < phase.wanted:
        taken = [place.slot for place in phase.places] + used_slots(context, job)
        end = DRAW_TRIES * (1 + phase.is_again)
        found = audit_draw.draw(seed, job.list_length, eligible, taken, phase.next_attempt, end)
        met = skips.of_job(context.state, job)
        is_ended = audit_draw.is_ended(met, phase.batch, int(phase.is_again))
        drawn = None if is_ended else next(found, None)
        if drawn is None:
            # The draw has no slot left, or met too much silence: the batch stays as it is.
            return context.put(job, phase=replace(phase, wanted=len(phase.places)))
        place = BatchPlace(drawn.slot, drawn.attempt, context.at, None)
        phase = replace(phase, places=(*phase.places, place), next_attempt=drawn.attempt + 1)
        job = assign_place(context, context.put(job, phase=phase), place)
        assert isinstance(job.phase, Running)
        phase = job.phase
    return job


def used_slots(context: StepContext, job: Job) -> list[StakeSlot]:
    """Those of members of closed batches, as they were then, and of skipped providers. A receipt
    shows both, so anybody can repeat the draw.
    """
    found = [slot for batch in job.batches for slot in batch.slots]
    phase = job.phase
    if isinstance(phase, Running):
        found += audit_draw.excluded_by(
            skips.of_job(context.state, job), phase.batch, int(phase.is_again)
        )
    return found


def is_out_of_patience(context: StepContext, job: Job, place: BatchPlace) -> bool:
    """Whether the provider of a place was busy for so long that another one is drawn. A fast job
    waits for nobody.
    """
    phase = job.phase
    assert isinstance(phase, Running)
    if job.is_drawing_first:
        return True
    waits = context.rules.limits.decline_ahead_max * (REPEAT_WAITS if phase.is_repeat else 1)
    return context.at > place.since + waits


def _has_left(context: StepContext, job: Job, slot: StakeSlot) -> bool:
    """After its last slot of the class was closed, a provider gets no new assignments."""
    pool, place = job.place_of(slot)
    hosts = context.state.pool_slots.get(pool)
    # the primary was matched and has no slot of the list
    is_closed = hosts is not None and (place < 0 or hosts.slots[place].active_until != FOREVER)
    return is_closed and slot.owner not in offers.owners_of(context, pool)


def assign_place(context: StepContext, job: Job, place: BatchPlace) -> Job:
    """Assigns a drawn place. A provider without a free run slot keeps it for a while, and is then
    asked, so that it declines; so is one that asks more than the order pays, or does not offer the
    class. One that is not alive is skipped with a signed Assignment.
    """
    assert isinstance(job.phase, Running)
    before = job.phase
    provider = context.state.providers[place.slot.owner]
    pool, _ = job.place_of(place.slot)
    slot = slot_offer(provider.offer, pool) if provider.offer else None
    others = tuple(item for item in before.places if item.attempt != place.attempt)
    most = job.order.max_price_per_hour
    is_alive = provider.is_alive(context.at)
    is_over = is_out_of_patience(context, job, place)
    is_unoffered = slot is None or slot.price > most
    # Nobody has failed to be heard before this coordinator has listened for as long.
    heard_from = context.state.own.restarted_at + context.rules.limits.heartbeat_alive
    is_unheard = not is_alive and context.at < heard_from
    is_gone = (
        (not is_alive and not is_unheard)
        or len(job.leases) >= ASSIGNMENTS_MAX
        or _has_left(context, job, place.slot)
    )
    if before.is_repeat and (is_gone or is_over or is_unoffered):
        # another member of the group is asked
        return context.put(job, phase=replace(before, places=others))
    if is_gone:
        job, lease = assign_in_vain(
            context, job, place.slot, most, before.batch, place.attempt >= 0
        )
        skip = SkippedPlace(place.attempt, place.slot, lease.assignment_hash)
        return context.put(
            job, phase=replace(before, places=others, skipped=(*before.skipped, skip))
        )
    is_busy = offers.free_slots(context, provider, pool) <= 0
    if is_unheard or (is_busy and not is_over and not is_unoffered):
        waiting = replace(place, assignment_hash=None, retry_at=UnixSeconds(context.at + 1))
        return context.put(job, phase=replace(before, places=(*others, waiting)))
    price = Price(min(most, slot.price) if slot is not None else most)
    job, lease = assign(context, job, place.slot, price, before.batch, place.attempt >= 0)
    return context.put(
        job,
        phase=replace(
            before,
            places=(
                *others,
                replace(place, assignment_hash=lease.assignment_hash, retry_at=UnixSeconds(0)),
            ),
        ),
    )
