"""Who is drawn: exactly the owners that this Python says, in lists of any length."""

from collections.abc import Sequence
from typing import Any

import pytest

from contracts.court_trial import DRAWING, NONE, RIGHT, VOTING, Trial, opened_trial
from contracts.court_world import CourtWorld, peopled_court
from contracts.world import CLASS, account
from quorate_contracts.abi_codec import encode
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET, MAINNET
from quorate_protocol.units import Address, Hash32

SHUFFLED, TRIES, PER_PLACE = 64, 512, 8


def number(*words: Any) -> int:
    return int.from_bytes(keccak256(encode(["bytes32", "uint256"], words)), "big")


def order_of(seed: Hash32, length: int) -> list[int]:
    """The places in the order in which a draw tries them."""
    if length > SHUFFLED:
        return [number(seed, k) % length for k in range(PER_PLACE * length)]
    order = list(range(length))
    for k in range(length):
        other = k + number(seed, k) % (length - k)
        order[k], order[other] = order[other], order[k]
    return order


def expected(
    trial: Trial, want: int, before: Sequence[Address] = (), young: frozenset[int] = frozenset()
) -> list[Address]:
    """Whom the case's round draws now; `young` places were opened after the execution."""
    world, filing = trial.world, trial.filing
    random = world.ask(world.beacon, "randomness", trial.round)
    seed = keccak256(encode(["bytes32", "bytes32"], [random, trial.case]))
    found: list[Address] = []
    networks = [_network(world, juror, filing[6]) for juror in before]
    for place in order_of(seed, filing[4]):
        owner, *_, start, end = world.ask(world.stakes, "slot", CLASS, place)
        is_active = start <= filing[5] and world.evm.number < end
        network = _network(world, owner, filing[6])
        if place in young or not is_active or owner in filing[:3] or network in networks:
            continue
        found.append(owner)
        networks.append(network)
        if len(found) == want:
            break
    return found


def _network(world: CourtWorld, owner: Address, at: int) -> bytes:
    return bytes(world.ask(world.stakes, "profile_at", owner, at)[1])


def proven(trial: Trial) -> Trial:
    """Proves the round that draws."""
    trial.world.prove(trial.round)
    return trial


@pytest.mark.rule("5.144")
@pytest.mark.parametrize("owners", [9, 12, 30])
def test_a_short_list_gives_the_shuffled_owners(owners: int) -> None:
    world = peopled_court(owners=owners)
    for accused in ("owner0", "owner2"):
        trial = proven(opened_trial(world, accused=accused))
        wanted = expected(trial, 7)
        assert trial.draw() == wanted and len(wanted) == 7
        assert not {account(each) for each in (accused, "owner1", "accuser")} & set(wanted)


@pytest.mark.rule("5.144")
def test_no_party_judges_whether_it_accuses_or_contradicts() -> None:
    """All others of a small class do, so a party that could be drawn would be."""
    world = peopled_court()
    trial = Trial(world, world.evidence())
    trial.open(who="owner5")
    assert set(trial.draw()) == {account(f"owner{each}") for each in (2, 3, 4, 6, 7, 8)}


def test_replacements_are_drawn_by_a_new_round_and_nobody_twice() -> None:
    world = peopled_court(owners=12)
    trial = opened_trial(world)
    first = trial.draw()
    trial.vote(dict.fromkeys(first[:3], RIGHT))
    moved = Hash32(keccak256(b"another network")[:7].ljust(32, b"\0"))
    world.send(world.owners[first[3]], world.stakes, "change_network", moved)
    trial.late()
    trial.advance()
    wanted = expected(proven(trial), 4, first)
    assert trial.draw() == wanted
    assert len(wanted) == 3 and len(set(first) | set(wanted)) == 10


@pytest.mark.rule("5.144")
def test_an_owner_of_many_slots_and_owners_of_one_network_judge_once() -> None:
    world = peopled_court()
    world.send("owner3", world.stakes, "open_slots", CLASS, 5)
    shared = world.ask(world.stakes, "network_of", account("owner4"))
    world.send("owner5", world.stakes, "change_network", shared)
    world.evm.travel(DEVNET.profile_delay + 2)
    trial = proven(opened_trial(world))
    wanted = expected(trial, 7)
    assert trial.draw() == wanted and len(wanted) == 6


def test_a_network_that_changed_after_the_opening_does_not_count() -> None:
    """Otherwise an owner that knows the round would choose who else judges."""
    world = peopled_court()
    trial = opened_trial(world)
    shared = world.ask(world.stakes, "network_of", account("owner4"))
    world.send("owner5", world.stakes, "change_network", shared)
    assert len(trial.draw()) == 7


@pytest.mark.rule("5.144")
def test_slots_opened_after_the_execution_and_slots_that_left_sit_in_no_jury() -> None:
    world = peopled_court()
    world.owner(9)
    late = Trial(world, world.evidence(run={"acceptBy": world.now - 2}))
    late.open()
    world.send("owner4", world.stakes, "exit")
    world.send("owner5", world.stakes, "close_slot", CLASS, 5)
    wanted = expected(proven(late), 7, young=frozenset({9}))
    assert late.draw() == wanted
    assert not {account(f"owner{each}") for each in (4, 5, 9)} & set(wanted)


def test_on_mainnet_a_slot_judges_executions_that_begin_two_weeks_later() -> None:
    world = peopled_court(MAINNET, 17)
    world.owner(17)
    opened = world.now
    for days, judges in ((14, True), (13, False)):
        made = world.fork()
        made.evm.travel(15 * DAY)
        trial = Trial(made, made.evidence(run={"acceptBy": opened + days * DAY}))
        trial.open()
        wanted = expected(proven(trial), 16, young=frozenset() if judges else frozenset({17}))
        assert (account("owner17") in wanted) == judges
        assert trial.draw() == wanted[:7]


def test_a_juror_that_leaves_after_the_draw_still_votes() -> None:
    world = peopled_court()
    trial = opened_trial(world)
    jury = trial.draw()
    world.send(world.owners[jury[0]], world.stakes, "exit")
    trial.vote(dict.fromkeys(jury, RIGHT))
    trial.reveal(dict.fromkeys(jury, RIGHT))
    assert trial.decide().paid == 7 * (DEVNET.jury_gas_fee + DEVNET.jury_pay_min)


def test_fewer_than_three_jurors_end_a_case_and_three_do_not() -> None:
    world = peopled_court()
    for leaves, phase in ((4, VOTING), (5, NONE)):
        made = world.fork()
        trial = opened_trial(made)
        for owner in range(2, 2 + leaves):
            made.send(f"owner{owner}", made.stakes, "exit")
        trial.draw()
        assert trial.phase == phase and len(trial.jury) == 7 - leaves


def long_list(owners: int, dead: int) -> CourtWorld:
    """A market whose list has many places of an owner that left."""
    world = peopled_court(owners=owners).fork()
    world.rich("leaver", dead * 200)
    keys = account("leaver operator"), account("leaver payout")
    network = b"leaver".ljust(32, b"\0")
    world.send("leaver", world.stakes, "register", *keys, bytes(32), bytes(32), network)
    for opened in range(0, dead, 16):
        world.send("leaver", world.stakes, "open_slots", CLASS, min(16, dead - opened))
    world.send("leaver", world.stakes, "exit")
    world.evm.travel(10)
    return world


@pytest.mark.parametrize("dead", [54, 55, 56])
def test_lists_round_the_longest_that_is_shuffled(dead: int) -> None:
    world = long_list(9, dead)
    trial = proven(opened_trial(world))
    assert trial.filing[4] == 9 + dead
    wanted = expected(trial, 7)
    assert trial.draw() == wanted and len(wanted) == 7


@pytest.mark.rule("5.145")
def test_a_long_list_is_drawn_over_several_transactions() -> None:
    world = long_list(9, 800)
    trial = proven(opened_trial(world))
    wanted = expected(trial, 7)
    while trial.phase == DRAWING:
        drawn = trial.draw_once().one("JuryDrawn")
        assert tuple(drawn.jury) == tuple(wanted[: len(drawn.jury)])
        assert (drawn.voteBy == 0) == (trial.phase == DRAWING)
    assert list(trial.jury) == wanted and len(wanted) == 7
    draws = trial.sent["draw"]
    assert len(draws) > 2 and max(sent.gas for sent in draws) < 4_000_000
    assert trial.phase == VOTING and trial.state[6] == 0


@pytest.mark.rule("5.145")
def test_a_draw_ends_after_eight_tries_a_place_with_those_found() -> None:
    world = long_list(9, 120)
    trial = opened_trial(world)
    for owner in range(2, 9):
        if owner not in (3, 4, 6):
            world.send(f"owner{owner}", world.stakes, "exit")
    world.prove(trial.round)
    for _ in range(PER_PLACE * 129 // TRIES):
        trial.draw_once()
        assert trial.phase == DRAWING
    trial.draw_once()
    assert trial.phase == VOTING
    assert sorted(trial.jury) == sorted(account(f"owner{each}") for each in (3, 4, 6))
