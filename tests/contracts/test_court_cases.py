"""Whole cases before the court: convictions, acquittals, failures, replacements, deadlines."""

import pytest

from contracts.court_trial import (
    ACQUITTED,
    CLOSED,
    CONVICTED,
    DRAWING,
    FAILED,
    NONE,
    REVEALING,
    RIGHT,
    VOTING,
    Trial,
    opened_trial,
)
from contracts.court_world import LIE, TRUTH, CourtWorld, peopled_court
from contracts.executions import result
from contracts.world import CLASS, account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET, MAINNET, USD
from quorate_protocol.units import ZERO_HASH

FEE, PAY, WINDOW = DEVNET.jury_gas_fee, DEVNET.jury_pay_min, DEVNET.jury_window
BURNED = 7 * (FEE + PAY)
WRONG, OTHER = result(LIE), keccak256(b"an answer of its own")


@pytest.fixture
def world() -> CourtWorld:
    return peopled_court()


def earned(world: CourtWorld, owner: str) -> int:
    return world.balance(owner) - 1000 * USD


@pytest.mark.rule("5.148", "5.149")
def test_a_wrong_result_costs_half_of_what_its_accuser_burned(world: CourtWorld) -> None:
    before = world.balance("accuser")
    trial = opened_trial(world)
    assert before - world.balance("accuser") == BURNED
    decided = trial.judged()
    assert (decided.outcome, decided.taken, decided.paid) == (CONVICTED, BURNED // 2, BURNED)
    assert world.stake("owner0") == DEVNET.slot_stake - BURNED // 2
    for juror in trial.jury:
        assert earned(world, world.owners[juror]) == FEE + PAY
    assert trial.phase == CLOSED
    assert world.ask(world.stakes, "open_slots_of", account("owner0"), CLASS) == 1
    world.refused("named", "accuser", world.court, "open_case", trial.evidence.shown, PAY)


@pytest.mark.rule("5.151")
def test_a_right_result_costs_its_provider_nothing_and_is_closed(world: CourtWorld) -> None:
    trial = opened_trial(world, answers=(TRUTH, LIE))
    assert trial.judged().outcome == ACQUITTED
    assert world.stake("owner0") == DEVNET.slot_stake and trial.phase == CLOSED


@pytest.mark.rule("5.148", "5.150")
@pytest.mark.parametrize(
    ("digests", "outcome", "paid"),
    [
        ([RIGHT] * 5 + [WRONG] * 2, CONVICTED, 5),
        ([WRONG] * 5 + [RIGHT] * 2, ACQUITTED, 5),
        ([RIGHT] * 4 + [WRONG] * 3, FAILED, 4),
        ([OTHER] * 7, FAILED, 7),
        ([RIGHT, RIGHT, WRONG, WRONG, OTHER, ZERO_HASH, keccak256(b"x")], FAILED, 4),
    ],
)
def test_two_thirds_decide_and_the_largest_groups_are_paid(
    world: CourtWorld, digests: list[bytes], outcome: int, paid: int
) -> None:
    trial = opened_trial(world)
    decided = trial.judged(digests)  # type: ignore[arg-type]
    assert (decided.outcome, decided.paid) == (outcome, paid * (FEE + PAY))
    if outcome == FAILED:
        assert trial.phase == NONE and world.stake("owner0") == DEVNET.slot_stake
        trial.open()
        assert trial.judged().outcome == CONVICTED


@pytest.mark.rule("5.147", "5.150")
def test_jurors_that_find_no_result_get_their_gas_alone(world: CourtWorld) -> None:
    trial = opened_trial(world)
    decided = trial.judged([ZERO_HASH] * 6 + [RIGHT])
    assert (decided.outcome, decided.paid) == (FAILED, 6 * FEE)


@pytest.mark.rule("5.142")
@pytest.mark.parametrize(("mine", "theirs"), [(512, 0), (513, 0), (0, 512), (0, 513)])
def test_a_run_that_the_machine_ended_never_convicts(
    world: CourtWorld, mine: int, theirs: int
) -> None:
    trial = opened_trial(world, run={"status": mine}, contradiction={"status": theirs})
    found = result(TRUTH, theirs)
    assert trial.judged([found] * 7).outcome == FAILED
    assert world.stake("owner0") == DEVNET.slot_stake


@pytest.mark.rule("5.143", "5.149")
def test_the_accuser_may_offer_more_and_the_slot_is_the_most(world: CourtWorld) -> None:
    trial = Trial(world, world.evidence())
    trial.open(pay=40 * USD)
    decided = trial.judged()
    assert decided.paid == 7 * (40 * USD + FEE)
    assert decided.taken == DEVNET.slot_stake and world.stake("owner0") == 0
    assert world.ask(world.stakes, "open_slots_of", account("owner0"), CLASS) == 0


@pytest.mark.rule("5.146")
def test_absent_jurors_are_replaced_once_by_a_new_round(world: CourtWorld) -> None:
    trial = opened_trial(world)
    first = trial.draw()
    trial.vote(dict.fromkeys(first[:4], RIGHT))
    world.refused("early", "boss", world.court, "advance", *trial.vote_head)
    trial.late(0)
    world.refused("early", "boss", world.court, "advance", *trial.vote_head)
    trial.late()
    old = trial.signed_vote(first[5], RIGHT)
    world.refused("phase", "boss", world.court, "vote", *trial.vote_head, [old])
    trial.advance()
    assert trial.phase == DRAWING
    assert trial.draw() == []  # nobody is left: two owners are parties, seven were drawn
    assert trial.phase == REVEALING
    trial.reveal(dict.fromkeys(first[:4], RIGHT))
    decided = trial.decide()
    assert (decided.outcome, decided.paid) == (CONVICTED, 4 * (FEE + PAY))


def test_who_was_replaced_votes_no_more() -> None:
    world = peopled_court(owners=14)
    trial = opened_trial(world)
    first = trial.draw()
    trial.vote(dict.fromkeys(first[3:], RIGHT))
    trial.late()
    trial.advance()
    new = trial.draw()
    assert not set(new) & set(first) and len(trial.jury) == 10
    late, again = trial.signed_vote(first[0], RIGHT), trial.signed_vote(first[3], RIGHT)
    for each, reason in ((late, "juror"), (again, "juror")):
        world.refused(reason, "boss", world.court, "vote", *trial.vote_head, [each])
    trial.vote(dict.fromkeys(new, RIGHT))
    trial.reveal(dict.fromkeys([*first[3:], *new], RIGHT), at_once=True)
    assert trial.decide().paid == BURNED
    assert earned(world, world.owners[first[0]]) == 0


@pytest.mark.parametrize(("votes", "phase"), [(4, DRAWING), (5, REVEALING)])
def test_two_absent_jurors_are_not_worth_a_round(world: CourtWorld, votes: int, phase: int) -> None:
    trial = opened_trial(world)
    trial.vote(dict.fromkeys(trial.draw()[:votes], RIGHT))
    trial.late()
    trial.advance()
    assert trial.phase == phase


def test_a_second_absence_is_not_replaced() -> None:
    world = peopled_court(owners=20)
    trial = opened_trial(world)
    for _ in range(2):
        trial.vote(dict.fromkeys(trial.draw()[:1], RIGHT))
        trial.late()
        trial.advance()
    assert trial.phase == REVEALING and len(trial.voters) == 2
    trial.reveal(dict.fromkeys(trial.voters, RIGHT))
    decided = trial.decide()
    assert (decided.outcome, decided.paid) == (FAILED, 2 * (FEE + PAY))


def test_a_case_without_any_vote_fails(world: CourtWorld) -> None:
    trial = opened_trial(world)
    trial.draw()
    trial.late()
    trial.advance()
    trial.draw()
    assert trial.phase == NONE


@pytest.mark.rule("5.146", "5.148")
def test_who_does_not_reveal_is_not_paid_and_two_answers_are_too_few(world: CourtWorld) -> None:
    trial = opened_trial(world)
    jury = trial.draw()
    trial.vote(dict.fromkeys(jury, RIGHT))
    trial.reveal(dict.fromkeys(jury[:2], RIGHT))
    openings = trial.evidence.openings
    world.refused("early", "boss", world.court, "decide", *trial.decide_head, openings)
    trial.late(0)
    world.refused("early", "boss", world.court, "decide", *trial.decide_head, openings)
    trial.late()
    world.refused("phase", "boss", world.court, "reveal", *trial.reveal_head, [])
    decided = trial.decide()
    assert (decided.outcome, decided.paid) == (FAILED, 2 * (FEE + PAY))
    assert [earned(world, world.owners[each]) for each in jury[2:]] == [0] * 5


def test_without_openings_a_case_ends_a_window_after_its_reveals(world: CourtWorld) -> None:
    trial = opened_trial(world)
    jury = trial.draw()
    trial.vote(dict.fromkeys(jury, RIGHT))
    trial.reveal(dict.fromkeys(jury, RIGHT))
    trial.late(WINDOW)
    world.refused("early", "boss", world.court, "decide", *trial.decide_head, [])
    trial.late(WINDOW + 1)
    decided = trial.decide([])
    assert (decided.outcome, decided.paid) == (FAILED, BURNED)
    assert trial.phase == NONE


def test_a_case_whose_votes_were_never_revealed_ends(world: CourtWorld) -> None:
    trial = opened_trial(world)
    trial.vote(dict.fromkeys(trial.draw(), RIGHT))
    trial.late(WINDOW + 1)
    decided = trial.decide([])
    assert (decided.outcome, decided.paid) == (FAILED, 0)


@pytest.mark.rule("5.152")
def test_a_missing_round_is_replaced_twice(world: CourtWorld) -> None:
    trial = opened_trial(world)
    for moves in (1, 2, 3):
        number = trial.round
        appears = world.ask(world.beacon, "time_of", number)
        world.evm.now = appears + DEVNET.jury_beacon_missing
        world.refused("early", "boss", world.court, "advance", *trial.vote_head)
        world.evm.now += 1
        trial.advance()
        assert (trial.phase, trial.state[1]) == ((DRAWING, moves) if moves < 3 else (NONE, 0))
    trial.open()
    world.prove(trial.round)
    world.evm.travel(DEVNET.jury_beacon_missing + 100)
    world.refused("phase", "boss", world.court, "advance", *trial.vote_head)
    assert trial.judged().outcome == CONVICTED


def test_a_missing_round_of_the_replacement_ends_with_those_who_voted(world: CourtWorld) -> None:
    trial = opened_trial(world)
    jury = trial.draw()
    trial.vote(dict.fromkeys(jury[:4], RIGHT))
    trial.late()
    trial.advance()
    for _ in range(3):
        world.evm.travel(DEVNET.jury_beacon_missing + 100)
        trial.advance()
    trial.reveal(dict.fromkeys(jury[:4], RIGHT))
    assert trial.decide().outcome == CONVICTED


def test_votes_and_reveals_of_any_order_and_at_once(world: CourtWorld) -> None:
    """A voter needs no earlier ballots, and a reveal no earlier reveal."""
    trial = opened_trial(world)
    jury = trial.draw()
    votes = [trial.signed_vote(juror, RIGHT) for juror in jury]
    for vote in reversed(votes):  # all were signed and encoded before the first was sent
        trial.send("vote", "vote", *trial.vote_head, [vote])
    head = trial.reveal_head
    for reveal in [trial.opened(juror, RIGHT) for juror in jury[3:] + jury[:3]]:
        trial.send("reveal", "reveal", *head, [reveal])
    assert trial.decide().outcome == CONVICTED
    other = Trial(world, world.evidence("owner1", "owner0"))
    other.open()
    views = dict.fromkeys(other.draw(), RIGHT)
    other.vote(views, at_once=True)
    other.reveal(views, at_once=True)
    assert other.decide().outcome == CONVICTED


def test_the_last_second_counts_and_the_next_does_not(world: CourtWorld) -> None:
    trial = opened_trial(world)
    jury = trial.draw()
    trial.vote({jury[0]: RIGHT})
    trial.late(0)
    trial.vote({jury[1]: RIGHT})
    trial.late()
    assert trial.phase == VOTING
    vote = trial.signed_vote(jury[2], RIGHT)
    world.refused("phase", "boss", world.court, "vote", *trial.vote_head, [vote])
    trial.advance()
    trial.draw()
    trial.reveal({jury[0]: RIGHT})
    trial.late(0)
    trial.reveal({jury[1]: RIGHT})
    assert trial.decide().paid == 2 * (FEE + PAY)


def test_jurors_have_a_window_and_the_time_of_the_job(world: CourtWorld) -> None:
    trial = Trial(world, world.evidence(both={"maxDuration": 600}))
    trial.open(USD)
    trial.draw()
    assert trial.state[5] == world.now + WINDOW + 600


@pytest.mark.rule("5.151")
def test_two_cases_of_one_evidence_never_run_at_once(world: CourtWorld) -> None:
    trial = opened_trial(world)
    world.refused("named", "accuser", world.court, "open_case", trial.evidence.shown, PAY)
    trial.judged([OTHER] * 7)
    trial.open(who="owner5")
    assert trial.judged().outcome == CONVICTED


def test_a_vote_of_an_earlier_case_does_not_count_in_the_next(world: CourtWorld) -> None:
    trial = opened_trial(world)
    jury = trial.draw()
    votes = {juror: trial.signed_vote(juror, OTHER) for juror in jury}
    trial.vote(dict.fromkeys(jury, OTHER))
    trial.reveal(dict.fromkeys(jury, OTHER))
    trial.decide()
    trial.open()
    seated = trial.draw()
    _, ballot, sig = votes[seated[0]]
    old = (trial.jury.index(seated[0]), ballot, sig)
    world.refused("key", "boss", world.court, "vote", *trial.vote_head, [old])


@pytest.mark.rule("5.153")
def test_a_case_over_the_oldest_evidence_ends_before_a_stake_can_leave() -> None:
    """So no case holds stake back. An owner may exit the moment it accepts."""
    m = MAINNET
    until_opened = m.case_duration_max + m.case_evidence_age
    votes = 2 * (m.jury_window + m.case_duration_max)
    longest = until_opened + votes + 2 * m.jury_window
    assert longest == 14 * DAY
    late_rounds = 4  # the first, two that replace it, and that of the replaced jurors
    assert longest + late_rounds * m.jury_beacon_missing == 18 * DAY < m.unbond_after
