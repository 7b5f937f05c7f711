"""The draw of auditors from the stake slots, and the rate at which jobs are audited (PROTOCOL §5).

All functions are pure and use exact integers of public inputs. So anyone can repeat the draw from
one receipt.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DRAW_TRIES, JURORS, SILENT_SKIPS_MAX, TIERS, USD
from quorate_protocol.messages.signed import Decline
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import PPM_ONE, Address, Amount, Hash32, Label, Ppm, Small, VerifyTier

DRAW_PASSES = 2  # a draw of a later batch that finds nobody is repeated once
DECLINES_MAX = 2  # then the provider is not asked again
_JUROR_GAS = USD // 2  # `jury_gas_fee` of all limits
_FAULTY_AUDITOR_PPM = 200_000  # f of p_econ: the share of faulty auditors that it assumes
_P_ECON_MAX = 950_000  # with 1 a provider without stake at risk would never get held pay


class Listed(Protocol):
    """A list that returns the eligible slot at an index."""

    def get(self, index: int, /) -> StakeSlot | None:
        """The slot at an index; None when that slot is not eligible."""


class Party(Protocol):
    """Somebody who has or had an execution of the job: a slot, or a registered provider."""

    @property
    def owner(self) -> Address: ...

    @property
    def payout(self) -> Address: ...

    @property
    def network(self) -> Hash32: ...


class Skipped(Struct, frozen=True):
    """A try of a draw whose provider did not run the execution."""

    batch: int
    attempt: int
    slot: StakeSlot
    has_declined: bool  # its signed Decline says so; else it was silent


class Drawn(Struct, frozen=True):
    """An auditor, and the try of the draw that gave it."""

    attempt: Small  # number of the try, from 0
    slot: StakeSlot


def seed(randomness: bytes, job_id: Hash32, secret: Hash32, batch: int) -> Hash32:
    """Seed of a batch's draw: H(beacon_R, jobId, x, batch)."""
    return hash_tuple(randomness, job_id, secret, batch)


def is_audited(draw_seed: Hash32, audit_ppm: Ppm) -> bool:
    """Whether the seed makes this an audited job: H(seed, "audit") mod 10^6 < auditPpm."""
    return (
        audit_ppm > 0
        and int.from_bytes(hash_tuple(draw_seed, "audit"), "big") % PPM_ONE < audit_ppm
    )


def slot_index(draw_seed: Hash32, attempt: int, length: int) -> int:
    """Index of the slot that try i meets: H(seed, "slot", i) mod the list's length."""
    return int.from_bytes(hash_tuple(draw_seed, "slot", attempt), "big") % length


def touched(draw_seed: Hash32, taken: Sequence[int], length: int) -> list[int]:
    """Index of the slot of each try, from the first try to the last one in `taken`."""
    return indices_of(draw_seed, range(max(taken, default=-1) + 1), length)


def indices_of(draw_seed: Hash32, tries: Sequence[int], length: int) -> list[int]:
    """Index of the slot that each of these tries meets; empty if the list is."""
    return [slot_index(draw_seed, attempt, length) for attempt in tries] if length else []


def draw(
    draw_seed: Hash32,
    list_length: int,
    eligible: Listed,
    excluded: Sequence[Party],
    first: int = 0,
    end: int = DRAW_TRIES,
) -> Iterator[Drawn]:
    """Yields the auditors in order of the tries, from try `first` and before try `end`.

    Each is eligible. No two of them, and none of them and `excluded`, have the same owner, payout
    or network. If an auditor does not answer, the caller takes the next one. The silent one still
    counts as drawn, so a coordinator gains nothing by a false claim of silence.
    """
    taken = list(excluded)
    for attempt in range(first, end if list_length else 0):
        slot = eligible.get(slot_index(draw_seed, attempt, list_length))
        if slot is None or is_taken(slot, taken):
            continue
        taken.append(slot)
        yield Drawn(Small(attempt), slot)


def pass_of(attempt: int) -> int:
    """The pass to which a try belongs: a draw that finds nobody is repeated once."""
    return attempt // DRAW_TRIES


def is_ended(skips: Sequence[Skipped], batch: int, draw_pass: int) -> bool:
    """Whether too many providers were silent in a pass of a draw. Then it draws nobody further.

    Silence is the coordinator's word alone. If it could claim any number of it, it could pass over
    owners until the draw meets a friend.
    """
    silent = (skip for skip in skips if not skip.has_declined)
    here = [skip for skip in silent if (skip.batch, pass_of(skip.attempt)) == (batch, draw_pass)]
    return len(here) > SILENT_SKIPS_MAX


def tries_in(
    skips: Sequence[Skipped], taken: Sequence[int], batch: int, empty_passes: int = 0
) -> list[int]:
    """The tries of a batch's draw that its receipt shows.

    They go up to the last one that gave an auditor or was skipped, or are all tries of
    `empty_passes` passes that found nobody. A pass that `is_ended` stops with its last skip.
    """
    met = [*taken, *(skip.attempt for skip in skips if skip.batch == batch)]
    found: list[int] = []
    passes = empty_passes or pass_of(max(met, default=-1)) + 1
    for number in range(passes):
        first = number * DRAW_TRIES
        own = [attempt for attempt in met if pass_of(attempt) == number]
        is_whole = empty_passes or number + 1 < passes
        ends = is_ended(skips, batch, number) or not is_whole
        found += range(first, max(own, default=first - 1) + 1 if ends else first + DRAW_TRIES)
    return found


def excluded_by(skips: Sequence[Skipped], batch: int, draw_pass: int) -> list[StakeSlot]:
    """Slots of skipped providers that a further try of this pass passes over. A silent provider is
    not asked again. One that declined is asked again in a later pass, once.
    """
    declined = Counter(skip.slot.owner for skip in skips if skip.has_declined)
    return [
        skip.slot
        for skip in skips
        if not skip.has_declined
        or (skip.batch, pass_of(skip.attempt)) == (batch, draw_pass)
        or declined[skip.slot.owner] >= DECLINES_MAX
    ]


def is_outright(decline: Decline) -> bool:
    """Whether a provider says that it will not run the execution at all. One that names a time
    keeps its place until then; a batch without it waits until acceptBy.
    """
    return decline.start_by == 0


def is_taken(slot: StakeSlot, taken: Sequence[Party]) -> bool:
    return any(_same_party(slot, other) for other in taken)


def _same_party(one: Party, other: Party) -> bool:
    return one.owner == other.owner or one.payout == other.payout or one.network == other.network


class CheatingIncentive(Struct, frozen=True):
    """What a cheating provider would gain and lose: the inputs of p_econ."""

    pay_max: Amount  # g: the most that the job pays
    stake: Amount  # of one slot; 0 = the provider has none, or the job can cost none
    held: Amount  # E: the provider's pay that is still held


def rate_ppm(rule: Label, tier: VerifyTier, trust: Trust, stakes: CheatingIncentive) -> Ppm:
    """Probability of an audit of one job (`auditPpm`), by PROTOCOL §5.

    quorum-2: 1. adaptive: max(p_min, p_econ, 1 − ε/e) with p_econ = g/((g+S+E)(1−f)), f = .2 and S
    what a conviction costs. No other code decides the rate.
    """
    if rule in (Label.UNVERIFIED, Label.NONE):
        return Ppm(0)
    if rule is Label.QUORUM_2 or tier is VerifyTier.CRITICAL:
        return Ppm(PPM_ONE)
    limits = TIERS[tier]
    error_ppm = trust.error_ppm()
    p_error = PPM_ONE - limits.epsilon * PPM_ONE // error_ppm if error_ppm > limits.epsilon else 0
    gain = stakes.pay_max
    convict_loses = JURORS * (gain + _JUROR_GAS) // 2  # PROTOCOL 5.149
    loss = gain + min(stakes.stake, convict_loses) + stakes.held
    p_econ = gain * PPM_ONE * PPM_ONE // (loss * (PPM_ONE - _FAULTY_AUDITOR_PPM)) if loss else 0
    return Ppm(max(limits.p_min, min(_P_ECON_MAX, p_econ), p_error))


def is_held(rule: Label, audited: bool) -> bool:
    """Whether the pay of an accepted job is held until its verdict is final. Audited jobs, and all
    jobs in small markets, are final at once. No other code decides this.
    """
    return rule is Label.ADAPTIVE and not audited
