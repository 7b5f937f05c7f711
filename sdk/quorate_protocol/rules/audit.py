"""Who audits: the beacon's draw over stake slots, and the rate at which jobs are audited
(PROTOCOL §5).

Everything is a pure function of public inputs, in exact integers, so that a stranger recomputes
it from one receipt.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import DRAW_TRIES, HELD_PRICE_MULTIPLE, TIERS, TRUST_NEWCOMER
from quorate_protocol.rules.trust import Trust
from quorate_protocol.units import (
    PPM_ONE,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Label,
    Ppm,
    Small,
    VerifyTier,
)

FOREVER = BlockNumber(2**48 - 1)
_FAULTY_AUDITOR_PPM = 200_000  # f of p_econ


class StakeSlot(Struct, frozen=True):
    """One entry of a host class's list in `Stakes`, as taken from the chain."""

    index: int
    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32
    active_from: BlockNumber
    active_until: BlockNumber = FOREVER

    def is_active(self, block: BlockNumber) -> bool:
        """Active at that block."""
        return self.active_from <= block < self.active_until

    def entry(self) -> Hash32:
        """Its entry in the eligible list: H(index, owner, operatorKey, payout, network,
        activeFrom, activeUntil).
        """
        return hash_tuple(
            self.index,
            self.owner,
            self.operator_key,
            self.payout,
            self.network,
            self.active_from,
            self.active_until,
        )


class Listed(Protocol):
    """Who is eligible at which index of a list."""

    def get(self, index: int, /) -> StakeSlot | None:
        """The slot; None when nobody is eligible there."""


class Drawn(Struct, frozen=True):
    """One taken try of the draw."""

    attempt: Small
    slot: StakeSlot


def seed(randomness: bytes, job_id: Hash32, secret: Hash32, batch: int) -> Hash32:
    """H(beacon_R, jobId, x, batch)."""
    return hash_tuple(randomness, job_id, secret, batch)


def is_audited(draw_seed: Hash32, audit_ppm: Ppm) -> bool:
    """H(seed, "audit") mod 10^6 < auditPpm."""
    return (
        audit_ppm > 0
        and int.from_bytes(hash_tuple(draw_seed, "audit"), "big") % PPM_ONE < audit_ppm
    )


def slot_index(draw_seed: Hash32, attempt: int, length: int) -> int:
    """H(seed, "slot", i) mod the list's length."""
    return int.from_bytes(hash_tuple(draw_seed, "slot", attempt), "big") % length


def touched(draw_seed: Hash32, taken: Sequence[int], length: int) -> list[int]:
    """The slot's index of each try up to the last of those taken: what a draw that took them has
    looked at.
    """
    return [slot_index(draw_seed, attempt, length) for attempt in range(max(taken, default=-1) + 1)]


def draw(
    draw_seed: Hash32,
    list_length: int,
    eligible: Listed,
    excluded: Sequence[StakeSlot],
    first: int = 0,
) -> Iterator[Drawn]:
    """Yields auditors in order of the tries, from try `first`: eligible, and distinct in owner,
    payout and network from `excluded` and from each other.

    A caller that skips a drawn auditor (no answer) simply takes the next; distinctness counts
    the skipped one too, so a coordinator gains nothing by inventing silence.
    """
    taken = list(excluded)
    for attempt in range(first, DRAW_TRIES if list_length else 0):
        slot = eligible.get(slot_index(draw_seed, attempt, list_length))
        if slot is None or any(_same_party(slot, other) for other in taken):
            continue
        taken.append(slot)
        yield Drawn(Small(attempt), slot)


def _same_party(one: StakeSlot, other: StakeSlot) -> bool:
    return one.owner == other.owner or one.payout == other.payout or one.network == other.network


class Stakeout(Struct, frozen=True):
    """What a cheat would gain and lose: the inputs of p_econ."""

    pay_max: Amount  # g: at most what the job pays
    stake: Amount
    held: Amount  # E: escrowed pay


def rate_ppm(rule: Label, tier: VerifyTier, trust: Trust, stakes: Stakeout) -> Ppm:
    """auditPpm of one job: the one place where the audit rate is decided.

    quorum-2: always. adaptive: p = 1 while k < 20, else max(p_min, p_econ, 1 − ε/e), e = m·λ/(m+k),
    p_econ = 2g/((g+S+E)(1−f)) with f = .2 and S = min(stake, 16 × pay) (PROTOCOL §5).
    """
    if rule in (Label.UNVERIFIED, Label.NONE):
        return Ppm(0)
    if rule is Label.QUORUM_2 or tier is VerifyTier.CRITICAL or trust.passed < TRUST_NEWCOMER:
        return Ppm(PPM_ONE)
    limits = TIERS[tier]
    error_ppm = trust.error_ppm()
    p_error = PPM_ONE - limits.epsilon * PPM_ONE // error_ppm if error_ppm > limits.epsilon else 0
    gain = stakes.pay_max
    loss = gain + min(stakes.stake, HELD_PRICE_MULTIPLE * gain) + stakes.held
    p_econ = 2 * gain * PPM_ONE * PPM_ONE // (loss * (PPM_ONE - _FAULTY_AUDITOR_PPM)) if loss else 0
    return Ppm(min(PPM_ONE, max(limits.p_min, p_econ, p_error)))


def is_held(rule: Label, audited: bool) -> bool:
    """Whether an accepted job's pay is held until final: the one place where holding is decided.
    Small markets settle at once.
    """
    return rule is Label.ADAPTIVE and not audited
