"""The draw of the two providers that verify a challenge beside the coordinator.

It is the draw of auditors (`rules.audit_draw`) with another seed. So no two verifiers, and no
verifier and the provider, share owner, payout or network. Anybody can repeat it from the challenge.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from quorate_attestation.challenge import ChallengeOpened, VerifierDraw
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.limits import DRAW_TRIES
from quorate_protocol.messages.eligible_list import EligibleList, ShownSlot
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import audit_draw
from quorate_protocol.rules.audit_draw import Drawn, Listed
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber, Hash32, Round, Small

DRAWN = 2  # providers beside the coordinator, or fewer if the list has fewer


def seed(beacon_round: Round, randomness: bytes, provider: Address, peer_key: Hash32) -> Hash32:
    """H("attest", round, randomness, provider, peer key)."""
    return hash_tuple("attest", beacon_round, sha256(randomness), provider, peer_key)


def candidates(
    draw_seed: Hash32,
    eligible: Listed,
    length: int,
    provider: Address,
    coordinator: Address,
    own: Sequence[StakeSlot],
) -> Iterator[Drawn]:
    """In order of the tries. A caller takes the first two that answer."""
    excluded = [_stand_in(provider), _stand_in(coordinator), *own]
    return audit_draw.draw(draw_seed, length, eligible, excluded)


def _stand_in(account: Address) -> StakeSlot:
    """For an account that may have no slot in the list."""
    no_network = hash_tuple("no network", account)
    return StakeSlot(0, account, account, account, no_network, BlockNumber(0))


def evidence(
    draw_seed: Hash32, eligible: EligibleList, attempts: Sequence[int], provider: Address
) -> VerifierDraw:
    """Of a draw of which the verifiers of these tries serve."""
    slot = next((slot for slot in eligible if slot.owner == provider), None)
    if len(attempts) == DRAWN:
        indices = audit_draw.touched(draw_seed, attempts, eligible.length)
    else:
        indices = _all_tries(draw_seed, eligible.length)
    return VerifierDraw(
        eligible.root,
        tuple(Small(attempt) for attempt in attempts),
        eligible.show(indices),
        eligible.show([slot.index]) if slot else (),
    )


def _all_tries(draw_seed: Hash32, length: int) -> list[int]:
    tries = range(DRAW_TRIES if length else 0)
    return [audit_draw.slot_index(draw_seed, attempt, length) for attempt in tries]


def check(challenge: ChallengeOpened) -> tuple[StakeSlot, ...]:
    """Returns the drawn slots in order. Raises `Refused(DOES_NOT_OPEN)` for other verifiers than
    named, or an entry that is not under the root. A list with too few owners gives fewer than two;
    then the evidence shows every try.
    """
    draw = challenge.draw
    length = _length(challenge)
    shown = _Shown(draw.shown)
    own = [item.slot for item in draw.own if item.slot is not None]
    if any(slot.owner != challenge.provider for slot in own):
        raise _wrong("own: it shows a slot of another owner")
    beacon = challenge.beacon
    draw_seed = seed(beacon.round, beacon.randomness, challenge.provider, challenge.peer_key)
    if len(draw.attempts) < DRAWN:
        _require_shown(shown, _all_tries(draw_seed, length))
    else:
        _require_shown(shown, audit_draw.touched(draw_seed, draw.attempts, length))
    coordinator = challenge.verifiers[0]
    found = candidates(draw_seed, shown, length, challenge.provider, coordinator, own)
    slots = {drawn.attempt: drawn.slot for drawn in islice(found, DRAW_TRIES)}
    served = [slots.get(attempt) for attempt in draw.attempts]
    taken = tuple(slot for slot in served if slot is not None)
    is_ordered = list(draw.attempts) == sorted(set(draw.attempts)) and len(taken) == len(served)
    if not is_ordered or len(taken) > DRAWN:
        raise _wrong("attempts: these tries draw nobody")
    if tuple(slot.owner for slot in taken) != challenge.verifiers[1:]:
        raise _wrong("verifiers: the beacon round draws others")
    return taken


def skipped(challenge: ChallengeOpened) -> int:
    """How many drawn verifiers did not serve; with fewer than two, all others. The challenge must
    have passed `check`.
    """
    draw = challenge.draw
    own = [item.slot for item in draw.own if item.slot is not None]
    beacon = challenge.beacon
    draw_seed = seed(beacon.round, beacon.randomness, challenge.provider, challenge.peer_key)
    found = candidates(
        draw_seed,
        _Shown(draw.shown),
        _length(challenge),
        challenge.provider,
        challenge.verifiers[0],
        own,
    )
    last = max(draw.attempts, default=-1) if len(draw.attempts) == DRAWN else DRAW_TRIES
    met = [drawn for drawn in islice(found, DRAW_TRIES) if drawn.attempt <= last]
    return len(met) - len(draw.attempts)


class _Shown:
    def __init__(self, shown: Sequence[ShownSlot]) -> None:
        self.slots = {item.proof.index: item.slot for item in shown}

    def get(self, index: int, /) -> StakeSlot | None:
        """None if it may not be drawn or is not shown."""
        return self.slots.get(index)


def _length(challenge: ChallengeOpened) -> int:
    """After a check that all entries are under its root."""
    draw = challenge.draw
    entries = (*draw.shown, *draw.own)
    lengths = {item.proof.count for item in entries}
    if len(lengths) > 1 or not all(item.is_under(draw.eligible_root) for item in entries):
        raise _wrong("draw: an entry is not under the eligible list's root")
    if not lengths and draw.eligible_root != ZERO_HASH:
        raise _wrong("draw: it shows no entry of a list that is not empty")
    return lengths.pop() if lengths else 0


def _require_shown(shown: _Shown, indices: Sequence[int]) -> None:
    if not set(indices) <= shown.slots.keys():
        raise _wrong("draw: it does not show every entry that the tries met")


def _wrong(detail: str) -> Refused:
    return Refused(Code.DOES_NOT_OPEN, f"challenge: {detail}; open it again with the drawn ones")
