"""The verifiers are drawn by the beacon round, and everybody can repeat the draw."""

import pytest

from quorate_attestation import verifier_draw
from quorate_attestation.challenge import ChallengeOpened
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Small
from quorate_protocol.values import replace
from support.attestation.scene import (
    COORDINATOR,
    PROVIDER,
    a_list,
    a_slot,
    claims,
    key,
    open_challenge,
)


@pytest.mark.rule("10.3")
def test_each_round_draws_two_others() -> None:
    seen = set()
    for number in range(1, 40):
        challenge = open_challenge(claims(), number=number)
        slots = verifier_draw.check(challenge)
        assert tuple(slot.owner for slot in slots) == challenge.verifiers[1:]
        assert len({PROVIDER.address, COORDINATOR.address, *challenge.verifiers[1:]}) == 4
        assert verifier_draw.skipped(challenge) == 0
        seen |= set(challenge.verifiers[1:])
    assert seen == {key(number).address for number in range(1, 8)}


@pytest.mark.rule("10.3")
@pytest.mark.parametrize("owners", [0, 1, 2, 3])
def test_a_short_list_gives_fewer_and_shows_every_try(owners: int) -> None:
    challenge = open_challenge(claims(), a_list(owners))
    assert len(verifier_draw.check(challenge)) == max(0, owners - 1)
    assert verifier_draw.skipped(challenge) == 0


@pytest.mark.rule("10.3")
def test_no_verifier_shares_a_network_with_the_provider_or_another() -> None:
    slots = [a_slot(0, 0), a_slot(1, 1, network=0), a_slot(2, 2), a_slot(3, 3, network=2)]
    challenge = open_challenge(claims(), EligibleList(slots, 4))
    (drawn,) = verifier_draw.check(challenge)
    assert drawn.owner in (key(2).address, key(3).address)


@pytest.mark.rule("10.3")
def test_a_skipped_verifier_is_counted() -> None:
    first = open_challenge(claims()).verifiers[1]
    challenge = open_challenge(claims(), silent=frozenset({first}))
    assert first not in challenge.verifiers
    verifier_draw.check(challenge)
    assert verifier_draw.skipped(challenge) == 1
    others = frozenset(key(number).address for number in range(2, 8))
    alone = open_challenge(claims(), silent=others)
    verifier_draw.check(alone)
    assert len(alone.verifiers) == 2 and verifier_draw.skipped(alone) == 6


def forged(challenge: ChallengeOpened) -> list[ChallengeOpened]:
    draw, verifiers = challenge.draw, challenge.verifiers
    others = [key(number).address for number in range(1, 8)]
    friend = next(account for account in others if account not in verifiers)
    return [
        replace(challenge, verifiers=(verifiers[0], friend, verifiers[2])),
        replace(challenge, verifiers=(verifiers[0], verifiers[2], verifiers[1])),
        replace(challenge, verifiers=verifiers[:2]),
        replace(challenge, draw=replace(draw, attempts=draw.attempts[::-1])),
        replace(challenge, draw=replace(draw, attempts=(draw.attempts[0],) * 2)),
        replace(challenge, draw=replace(draw, attempts=(draw.attempts[0], Small(63)))),
        replace(challenge, draw=replace(draw, attempts=draw.attempts[:1]), verifiers=verifiers[:2]),
        replace(challenge, draw=replace(draw, shown=draw.shown[:-1])),
        replace(challenge, draw=replace(draw, shown=a_list(9).show(range(9)))),
        replace(challenge, draw=replace(draw, own=draw.shown[:1])),
        replace(
            challenge, draw=replace(draw, shown=(), own=(), attempts=()), verifiers=verifiers[:1]
        ),
    ]


@pytest.mark.rule("10.3")
@pytest.mark.parametrize("number", range(11))
def test_a_forged_draw_is_refused(number: int) -> None:
    wrong = forged(open_challenge(claims(), number=4))[number]
    with pytest.raises(Refused) as refused:
        verifier_draw.check(wrong)
    assert refused.value.code is Code.DOES_NOT_OPEN
