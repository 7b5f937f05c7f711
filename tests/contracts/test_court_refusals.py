"""What the court refuses, and for which reason. Each refusal changes nothing."""

from typing import Any

import pytest

from contracts.court_trial import RIGHT, Trial, opened_trial
from contracts.court_world import CourtWorld, peopled_court
from contracts.world import account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import ZERO_HASH

PAY, AGE, LONGEST = DEVNET.jury_pay_min, DEVNET.case_evidence_age, DEVNET.case_duration_max
OTHER_CLASS = keccak256(b"another pool")

# What of the evidence is changed, and why the court refuses it. A changed message has another
# digest, so a signature over anything that the evidence does not repeat names no key of its signer.
EVIDENCE: dict[str, tuple[str, dict[str, Any]]] = {
    "the contradiction is the accused's own": ("contradiction", {"other": "owner0"}),
    "another comparator": ("caseable", {"both": {"comparator": 2}}),
    "an order that is not caseable": ("caseable", {"both": {"caseable": False}}),
    "an order of another pool": ("class", {"both": {"pool": OTHER_CLASS}}),
    "a run of another pool": ("assignment", {"run": {"pool": OTHER_CLASS}}),
    "a contradiction of another": ("assignment", {"contradiction": {"pool": OTHER_CLASS}}),
    "another determinism class": ("commit", {"run": {"classId": OTHER_CLASS}}),
    "that of the contradiction": ("commit", {"contradiction": {"classId": OTHER_CLASS}}),
    "another spec": ("assignment", {"run": {"specHash": OTHER_CLASS}}),
    "a contradiction of another spec": ("assignment", {"contradiction": {"specHash": OTHER_CLASS}}),
    "another job": ("assignment", {"contradiction": {"assignmentId": OTHER_CLASS}}),
    "another index": ("assignment", {"run": {"index": 2, "shown_index": 1}}),
    "another price tier": ("assignment", {"run": {"priceTier": 1}}),
    "a commit to another assignment": ("commit", {"run": {"assignmentHash": OTHER_CLASS}}),
    "a session of another client": ("session", {"session": {"client": account("client1")}}),
    "a session signed by another": ("session", {"session": {"signer": "client1"}}),
    "an order signed by another": ("order", {"both": {"orderer": "client1 session"}}),
    "a session of another key": ("order", {"session": {"sessionKey": account("client1")}}),
    "an assignment signed by another": ("assignment", {"run": {"signer": "owner0 operator"}}),
    "a commit signed by another": ("commit", {"run": {"committer": "owner1 operator"}}),
    "the contradiction's likewise": ("commit", {"contradiction": {"committer": "owner0 operator"}}),
    "a price above the order's": ("price", {"run": {"pricePerHour": 3 * USD + 1}}),
    "a duration above the order's": ("duration", {"run": {"maxDuration": 61}}),
    "the contradiction's duration": ("duration", {"contradiction": {"maxDuration": 61}}),
    "too long a job": ("duration", {"both": {"maxDuration": LONGEST + 1}}),
}


@pytest.fixture
def world() -> CourtWorld:
    return peopled_court()


@pytest.mark.rule("5.141", "5.142")
@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_that_does_not_fit_is_refused(world: CourtWorld, name: str) -> None:
    reason, changes = EVIDENCE[name]
    shown = world.evidence(**changes).shown
    world.refused(reason, "accuser", world.court, "open_case", shown, 100 * USD)


@pytest.mark.rule("5.142")
# acceptBy as seconds from now, and why the court refuses it
@pytest.mark.parametrize(
    ("run", "contradiction", "reason"),
    [
        (0, -1, "early"),
        (-1, 0, "early"),
        (-1, -1, ""),
        (-AGE - 60, -1, ""),
        (-AGE - 61, -1, "late"),
        (-1, -AGE - 200, ""),
    ],
)
def test_evidence_has_its_time(
    world: CourtWorld, run: int, contradiction: int, reason: str
) -> None:
    times = [{"acceptBy": world.now + seconds} for seconds in (run, contradiction)]
    shown = world.evidence(run=times[0], contradiction=times[1]).shown
    world.expect(reason, "accuser", world.court, "open_case", shown, PAY)


def test_a_session_covers_the_accused_runs_time(world: CourtWorld) -> None:
    at = world.now - 10
    for expires, reason in ((at - 1, "expired"), (at, "")):
        evidence = world.evidence(both={"acceptBy": at}, session={"expires": expires})
        world.expect(reason, "accuser", world.court, "open_case", evidence.shown, PAY)


def test_the_longest_job_is_judged(world: CourtWorld) -> None:
    evidence = world.evidence(both={"maxDuration": LONGEST})
    least = LONGEST * 2 * USD // 3600
    world.refused("pay", "accuser", world.court, "open_case", evidence.shown, least - 1)
    world.send("accuser", world.court, "open_case", evidence.shown, least)


@pytest.mark.rule("5.143")
def test_a_juror_gets_no_less_than_its_least_pay_nor_than_the_budget(world: CourtWorld) -> None:
    cheap = world.evidence()  # 60 s at 2 USD an hour: 0.033 USD
    world.refused("pay", "accuser", world.court, "open_case", cheap.shown, PAY - 1)
    small = world.evidence(both={"maxDuration": LONGEST, "budget": PAY + 7})
    world.refused("pay", "accuser", world.court, "open_case", small.shown, PAY + 6)
    world.refused("pay", "accuser", world.court, "open_case", small.shown, 2**60)
    world.send("accuser", world.court, "open_case", small.shown, PAY + 7)


@pytest.mark.rule("5.143")
def test_an_accuser_pays_from_its_balance(world: CourtWorld) -> None:
    whole = 7 * (DEVNET.jury_gas_fee + PAY)
    world.fund("poor", whole)
    world.send("poor", world.escrow, "deposit", whole - 1, bytes(20))
    evidence = world.evidence()
    world.refused("amount", "poor", world.court, "open_case", evidence.shown, PAY)
    world.send("poor", world.escrow, "deposit", 1, bytes(20))
    world.send("poor", world.court, "open_case", evidence.shown, PAY)


def test_keys_count_if_they_were_valid_at_accept_by(world: CourtWorld) -> None:
    """The old key answers for what it signed; a thief of it signs nothing newer."""
    world.send("owner0", world.stakes, "rotate_key", account("owner0 new"))
    rotated = world.now
    world.evm.travel(10)
    for accept_by, key, reason in (
        (rotated, "owner0 operator", ""),
        (rotated + 1, "owner0 operator", "commit"),
        (rotated - 1, "owner0 new", "commit"),
        (rotated, "owner0 new", ""),
    ):
        run = {"acceptBy": accept_by, "committer": key}
        shown = world.evidence(run=run).shown
        world.expect(reason, "accuser", world.court, "open_case", shown, PAY)


def test_a_coordinator_without_bond_orders_nothing_that_is_judged(world: CourtWorld) -> None:
    other = {"coordinator": account("owner3"), "signer": "owner3 operator"}
    shown = world.evidence(both=other).shown
    world.refused("bond", "accuser", world.court, "open_case", shown, PAY)


@pytest.mark.rule("5.144")
@pytest.mark.parametrize(("owners", "reason"), [(4, "owners"), (5, "")])
def test_parties_do_not_count_among_the_owners(owners: int, reason: str) -> None:
    """Neither by being there nor by leaving: otherwise the accused could end its case."""
    world = peopled_court(owners=owners)
    if not reason:
        for label in ("owner0", "owner1"):
            world.send(label, world.stakes, "exit")
    shown = world.evidence().shown
    if reason:
        world.refused(reason, "accuser", world.court, "open_case", shown, PAY)
        return
    world.refused("owners", "owner4", world.court, "open_case", shown, PAY)
    world.send("owner1", world.court, "open_case", shown, PAY)


def test_steps_of_a_case_fit_only_it(world: CourtWorld) -> None:
    trial, other = opened_trial(world), Trial(world, world.evidence("owner2", "owner1"))
    other.open()
    court = world.court
    world.refused("beacon", "boss", court, "draw", trial.filing, b"")
    wrong = (*trial.filing[:9], trial.filing[9] + 1, *trial.filing[10:])
    world.refused("case", "boss", court, "draw", wrong, b"")
    world.refused("case", "boss", court, "draw", trial.filing, account("owner3"))
    jury = trial.draw()
    world.refused("phase", "boss", court, "draw", trial.filing, b"".join(jury))
    vote = trial.signed_vote(jury[0], RIGHT)
    execution, case, names = trial.vote_head
    for head in (
        (execution, other.case, names),
        (execution, case, names[:-20]),
        (execution, case, names[20:] + account("owner0")),
    ):
        world.refused("case", "boss", court, "vote", *head, [vote])
        world.refused("case", "boss", court, "advance", *head)
    place, ballot, sig = vote
    for bad, reason in (
        ((7, ballot, sig), "juror"),
        ((place + 1, ballot, sig), "key"),
        ((place, ZERO_HASH, sig), "key"),
        (trial.signed_vote(jury[0], RIGHT, "owner0 operator"), "key"),
    ):
        world.refused(reason, "boss", court, "vote", *trial.vote_head, [bad])
    world.refused("voted", "boss", court, "vote", *trial.vote_head, [vote, vote])
    world.refused("phase", "boss", court, "reveal", *trial.reveal_head, [])
    trial.vote(dict.fromkeys(jury, RIGHT))
    _refuse_reveals(trial, jury)
    trial.reveal(dict.fromkeys(jury, RIGHT))
    _refuse_decisions(trial)


def _refuse_reveals(trial: Trial, jury: list[Any]) -> None:
    world, court = trial.world, trial.world.court
    place, juror, salt, digest = reveal = trial.opened(jury[0], RIGHT)
    ballots = trial.ballots
    for wrong in (ballots[:-1], [*ballots[1:], ballots[0]], []):
        head = trial.evidence.execution, wrong
        world.refused("ballots", "boss", court, "reveal", *head, [reveal])
    for bad in (
        (place + 1, juror, salt, digest),
        (7, juror, salt, digest),
        (place, jury[1], salt, digest),
        (place, juror, ZERO_HASH, digest),
        (place, juror, salt, ZERO_HASH),
    ):
        world.refused("reveal", "boss", court, "reveal", *trial.reveal_head, [bad])
    world.refused("revealed", "boss", court, "reveal", *trial.reveal_head, [reveal, reveal])


def _refuse_decisions(trial: Trial) -> None:
    world, court = trial.world, trial.world.court
    filing, names, ballots = trial.decide_head
    openings = trial.evidence.openings
    wrong = (*filing[:1], account("owner2"), *filing[2:])
    for head, reason in (
        ((wrong, names, ballots), "case"),
        ((filing, ZERO_HASH, ballots), "case"),
        ((filing, names, ballots[1:]), "ballots"),
        ((filing, names, [(*ballots[0][:2], ZERO_HASH), *ballots[1:]]), "ballots"),
    ):
        world.refused(reason, "boss", court, "decide", *head, openings)
    for bad in (openings[:1], openings[::-1], [openings[0], openings[0]]):
        world.refused("opening", "boss", court, "decide", *trial.decide_head, bad)
    changed = (1, *openings[0][1:])
    world.refused("opening", "boss", court, "decide", *trial.decide_head, [changed, openings[1]])


def test_a_rotated_key_votes_no_more(world: CourtWorld) -> None:
    trial = opened_trial(world)
    juror = trial.draw()[0]
    label = world.owners[juror]
    world.send(label, world.stakes, "rotate_key", account("another key"))
    world.evm.travel(1)
    old = trial.signed_vote(juror, RIGHT)
    world.refused("key", "boss", world.court, "vote", *trial.vote_head, [old])
    new = trial.signed_vote(juror, RIGHT, "another key")
    world.send("boss", world.court, "vote", *trial.vote_head, [new])
