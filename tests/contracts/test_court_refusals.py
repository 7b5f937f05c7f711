"""Tests what the court refuses: malformed cases, wrong keys, wrong phases."""

import pytest

from contracts.evm import refused
from contracts.market import (
    ACCUSER,
    BOSS,
    CLASS,
    COORDINATOR,
    STATEMENT,
    Evidence,
    Market,
    key,
    market,
    peopled,
    session_key,
)
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.court import CaseExecution, CaseId, jury_vote
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.units import Comparator, Signature
from quorate_protocol.values import replace

ACCUSED = key("owner0").address
CLIENTS = [key(f"client{i}") for i in range(3)]
ORDER_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def _shown(world: Market, *evidence: Evidence):  # type: ignore[no-untyped-def]
    return world.contracts.cases.open_case([each.shown for each in evidence])


CHANGES: list[tuple[str, dict[str, object]]] = [
    ("caseable", {"comparator": Comparator.NUMERIC}),
    ("caseable", {"caseable": False}),
    ("price", {"price_per_hour": 3_000_001}),
    ("class", {"host_class": keccak256(b"some other class"), "assignment_id": None}),
    ("blind", {"assignment_id": keccak256(b"another job's")}),
    ("early", {"accept_by": 0}),
    ("expired", {"accept_by": 100_000}),
    ("commit", {"assignment_hash": keccak256(b"another assignment")}),
    ("assignment", {"coordinator": BOSS.address}),
]


@pytest.mark.rule("3.12", "5.69", "5.70")
@pytest.mark.parametrize(
    ("reason", "changes"),
    CHANGES,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_signed_but_unfit_execution_is_refused(reason: str, changes: dict[str, object]) -> None:
    world = peopled()
    good = world.execution(ACCUSED, CLIENTS[1])
    now = world.evm.now
    fitted = {
        name: now + value if name == "accept_by" else value
        for name, value in changes.items()
        if value is not None
    }  # type: ignore[operator]
    if "coordinator" in fitted:
        bad = _reassigned(world, world.execution(ACCUSED, CLIENTS[0]), coordinator=BOSS.address)
    elif reason == "class":
        bad = _reassigned(
            world, world.execution(ACCUSED, CLIENTS[0]), host_class=fitted["host_class"]
        )
    else:
        bad = world.execution(ACCUSED, CLIENTS[0], **fitted)
    refused(world.evm, reason, ACCUSER.address, _shown(world, good, bad))
    money(world)


def _reassigned(world: Market, evidence: Evidence, **changes: object) -> Evidence:
    """Returns the evidence with a changed, newly signed Assignment and the old Commit."""
    body = replace(evidence.shown.run.assignment.message, **changes)  # type: ignore[arg-type]
    signed = seal(world.domain, body, STATEMENT.sign)
    return replace(evidence, shown=_with(evidence.shown, "assignment", signed))


def _part(shown: CaseExecution, part: str) -> Envelope[object]:
    return getattr(shown.job if part in ("session", "order") else shown.run, part)  # type: ignore[no-any-return]


def _with(shown: CaseExecution, part: str, envelope: Envelope[object]) -> CaseExecution:
    if part in ("session", "order"):
        return replace(shown, job=replace(shown.job, **{part: envelope}))
    return replace(shown, run=replace(shown.run, **{part: envelope}))


def _resigned(world: Market, shown: CaseExecution, part: str, signer: str) -> CaseExecution:
    return _with(shown, part, seal(world.domain, _part(shown, part).message, key(signer).sign))


@pytest.mark.rule("I5", "3.3", "5.70")
@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("session", "session"),
        ("order", "order"),
        ("assignment", "assignment"),
        ("commit", "commit"),
    ],
)
def test_every_signature_is_checked(part: str, reason: str) -> None:
    world = peopled()
    good, other = world.execution(ACCUSED, CLIENTS[1]), world.execution(ACCUSED, CLIENTS[0])
    cases = world.contracts.cases
    forged = _resigned(world, other.shown, part, "stranger")
    refused(world.evm, reason, ACCUSER.address, cases.open_case([good.shown, forged]))
    envelope = _part(other.shown, part)
    sig = envelope.sig
    high = Signature(
        sig[:32]
        + (ORDER_N - int.from_bytes(sig[32:64], "big")).to_bytes(32, "big")
        + bytes([55 - sig[64]])
    )
    malleable = _with(other.shown, part, Envelope(envelope.message, high))
    refused(world.evm, "signature", ACCUSER.address, cases.open_case([good.shown, malleable]))
    unsigned = _with(other.shown, part, Envelope(envelope.message, Signature(bytes(64) + b"\x1b")))
    refused(world.evm, "signature", ACCUSER.address, cases.open_case([good.shown, unsigned]))


@pytest.mark.rule("3.13", "3.14")
def test_a_swapped_assignment_does_not_fit_the_commit() -> None:
    """A coordinator may sign a second Assignment with the same id for another spec. No honest
    Commit refers to it.
    """
    world = peopled()
    good, other = world.execution(ACCUSED, CLIENTS[1]), world.execution(ACCUSED, CLIENTS[0])
    swapped = _reassigned(world, other, price_per_hour=1)
    refused(world.evm, "commit", ACCUSER.address, _shown(world, good, swapped))


@pytest.mark.rule("5.70")
def test_an_order_of_another_session_is_refused() -> None:
    world = peopled()
    good, other = world.execution(ACCUSED, CLIENTS[1]), world.execution(ACCUSED, CLIENTS[0])
    mixed = _with(other.shown, "session", good.shown.job.session)
    refused(
        world.evm, "session", ACCUSER.address, world.contracts.cases.open_case([good.shown, mixed])
    )
    changed = replace(other.shown.job.order.message, spec_hash=keccak256(b"another spec"))
    order = seal(world.domain, changed, session_key(CLIENTS[0]).sign)
    refused(
        world.evm,
        "blind",
        ACCUSER.address,
        world.contracts.cases.open_case([good.shown, _with(other.shown, "order", order)]),
    )


@pytest.mark.rule("I5", "5.68")
def test_a_case_needs_different_clients_or_three_executions() -> None:
    world = peopled()
    one, two = world.execution(ACCUSED, CLIENTS[0]), world.execution(ACCUSED, CLIENTS[0])
    refused(world.evm, "clients", ACCUSER.address, _shown(world, one, two))
    refused(
        world.evm, "count", ACCUSER.address, world.contracts.cases._call("open_case", 500_000, [])
    )
    other = world.execution(ACCUSED, CLIENTS[1])
    refused(world.evm, "named", ACCUSER.address, _shown(world, one, other, one))


@pytest.mark.rule("5.68", "5.69")
def test_a_case_names_one_provider_of_one_class() -> None:
    world = peopled()
    one, two = (
        world.execution(ACCUSED, CLIENTS[0]),
        world.execution(key("owner1").address, CLIENTS[1]),
    )
    refused(world.evm, "provider", ACCUSER.address, _shown(world, one, two))
    elsewhere = world.execution(ACCUSED, CLIENTS[1], host_class=keccak256(b"other class"))
    refused(world.evm, "class", ACCUSER.address, _shown(world, one, elsewhere))


def test_no_provider_accuses_itself_and_an_accused_needs_stake() -> None:
    world = peopled()
    pair = [world.execution(ACCUSED, client) for client in CLIENTS[:2]]
    refused(world.evm, "accuser", ACCUSED, _shown(world, *pair))
    bare = world.provider(40, slots=0)
    refused(
        world.evm,
        "stake",
        ACCUSER.address,
        _shown(world, *[world.execution(bare, client) for client in CLIENTS[:2]]),
    )


@pytest.mark.rule("5.72")
def test_an_execution_is_in_one_open_case_at_a_time() -> None:
    world = peopled()
    trial = Trial.opened(world, ACCUSED)
    fresh = world.execution(ACCUSED, CLIENTS[2])
    refused(world.evm, "named", ACCUSER.address, _shown(world, fresh, trial.evidence[0]))


@pytest.mark.rule("5.69")
@pytest.mark.parametrize("late", [0, 1])
def test_evidence_counts_until_its_last_second(late: int) -> None:
    world = peopled()
    pair = [world.execution(ACCUSED, client) for client in CLIENTS[:2]]
    world.evm.travel(29 + DEVNET.case_evidence_age + late)
    call = _shown(world, *pair)
    if late:
        refused(world.evm, "late", ACCUSER.address, call)
    else:
        world.evm.send(ACCUSER.address, call)


@pytest.mark.rule("2.3", "2.5", "2.11")
def test_a_rotated_key_answers_for_what_it_signed_in_its_last_second() -> None:
    world = peopled()
    evm = world.evm
    pair = [world.execution(ACCUSED, client) for client in CLIENTS[:2]]
    evm.send(ACCUSED, world.contracts.stakes.rotate_key(key("operator0 next").address))
    evm.send(COORDINATOR.address, world.contracts.stakes.rotate_key(key("statement next").address))
    world.fork().evm.send(ACCUSER.address, _shown(world, *pair))
    evm.travel(2)
    later = [world.execution(ACCUSED, client) for client in CLIENTS[:2]]
    refused(evm, "assignment", ACCUSER.address, _shown(world, *later))


@pytest.mark.rule("I5", "5.68")
def test_two_clients_must_have_allocated_long_enough() -> None:
    world = market(MAINNET)
    for number in range(16):
        world.provider(number)
    old = world.client(0)
    world.evm.travel(14 * 86_400)
    young = world.client(1)
    world.evm.travel(7 * 86_400)
    early = [world.execution(ACCUSED, client) for client in (old, young)]
    refused(world.evm, "allocation", ACCUSER.address, _shown(world, *early))
    world.evm.travel(1)
    Trial.opened(world, ACCUSED, (old, young))
    stranger = key("never allocated")
    mixed = [world.execution(ACCUSED, client) for client in (old, stranger)]
    refused(world.evm, "allocation", ACCUSER.address, _shown(world, *mixed))
    Trial.opened(world, ACCUSED, (stranger, stranger, stranger))
    money(world)


@pytest.mark.rule("5.76")
def test_mainnet_jurors_staked_fourteen_days_before_the_executions() -> None:
    world = market(MAINNET)
    for number in range(16):
        world.provider(number)
    clients = [world.client(number) for number in range(2)]
    world.evm.travel(14 * 86_400)
    pair = [world.execution(ACCUSED, client) for client in clients]
    trial = Trial(world, pair)
    trial.open()
    trial.draw()
    assert trial.jurors == (), "every slot is a second too young: a void case"
    world.evm.travel(1)
    trial = Trial.opened(world, ACCUSED, clients)
    trial.draw()
    assert len(trial.jurors) == 7
    money(world)


@pytest.mark.rule("2.2", "2.8", "3.24")
def test_votes_come_from_seated_jurors_keys_once() -> None:
    world = peopled(providers=10)
    court, evm = world.contracts.court, world.evm
    trial = Trial.opened(world, ACCUSED)
    refused(evm, "phase", BOSS.address, court.vote(trial.case, []))
    trial.draw()
    refused(evm, "phase", BOSS.address, court.draw_jury(trial.case))
    outsider = next(
        owner for owner in world.operators if owner not in trial.jurors and owner != ACCUSED
    )
    juror = trial.jurors[0]
    refused(
        evm, "juror", BOSS.address, court.vote(trial.case, [trial.signed_vote(outsider, TRUTH[:2])])
    )
    refused(
        evm, "juror", BOSS.address, court.vote(trial.case, [trial.signed_vote(ACCUSED, TRUTH[:2])])
    )
    stranger = seal(
        world.domain,
        jury_vote(trial.case, key("nobody").address, TRUTH[0], TRUTH),
        key("nobody").sign,
    )
    refused(evm, "juror", BOSS.address, court.vote(trial.case, [stranger]))
    refused(
        evm,
        "key",
        BOSS.address,
        court.vote(trial.case, [trial.signed_vote(juror, TRUTH[:2], world.operators[outsider])]),
    )
    vote = trial.signed_vote(juror, TRUTH[:2])
    refused(evm, "voted", BOSS.address, court.vote(trial.case, [vote, vote]))
    evm.send(juror, world.contracts.stakes.rotate_key(key("next operator").address))
    evm.travel(1)
    refused(evm, "key", BOSS.address, court.vote(trial.case, [vote]))
    evm.send(
        BOSS.address,
        court.vote(trial.case, [trial.signed_vote(juror, TRUTH[:2], key("next operator"))]),
    )


@pytest.mark.rule("3.25")
def test_reveals_open_ballots_once_and_name_no_digest_too_many() -> None:
    world = peopled()
    court, evm = world.contracts.court, world.evm
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    juror = trial.jurors[0]
    trial.vote([TRUTH] + [TRUTH[:2]] * 5, trial.jurors[:6])
    refused(evm, "phase", BOSS.address, court.reveal(trial.case, [trial.opening(juror, TRUTH)]))
    trial.vote([TRUTH[:2]], trial.jurors[6:])
    refused(
        evm, "reveal", BOSS.address, court.reveal(trial.case, [trial.opening(juror, TRUTH)])
    )  # three digests for two executions
    refused(
        evm,
        "reveal",
        BOSS.address,
        court.reveal(trial.case, [trial.opening(trial.jurors[1], (TRUTH[1], TRUTH[0]))]),
    )
    good = trial.opening(trial.jurors[1], TRUTH[:2])
    refused(
        evm,
        "reveal",
        BOSS.address,
        court.reveal(trial.case, [replace(good, juror=trial.jurors[2])]),
    )
    refused(evm, "revealed", BOSS.address, court.reveal(trial.case, [good, good]))
    evm.send(BOSS.address, court.reveal(trial.case, [good]))
    refused(evm, "revealed", BOSS.address, court.reveal(trial.case, [good]))


@pytest.mark.rule("3.29", "5.71")
def test_the_decision_opens_the_commitments_that_were_shown() -> None:
    world = peopled()
    court, evm = world.contracts.court, world.evm
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    trial.vote([TRUTH[:2]] * 7)
    trial.reveal([TRUTH[:2]] * 7)
    first, other, second, last = reveals = trial.reveals()
    for wrong in (
        (second, other, first, last),
        (other, first, second, last),
        (first, other, replace(second, salt=TRUTH[0]), last),
        (first, other, second, replace(last, output_digest=TRUTH[0])),
        (first, other, second, replace(last, provider=ACCUSED)),
    ):
        refused(evm, "reveal", BOSS.address, court.decide(trial.case, wrong))
    refused(evm, "count", BOSS.address, court.decide(trial.case, reveals[:3]))
    trial.decide()
    refused(evm, "phase", BOSS.address, court.decide(trial.case, reveals))
    for call in (court.advance(trial.case), court.draw_jury(trial.case)):
        refused(evm, "phase", BOSS.address, call)


def test_a_case_that_was_never_opened_does_nothing() -> None:
    world = peopled()
    court = world.contracts.court
    for call in (
        court.draw_jury(CaseId(7)),
        court.advance(CaseId(7)),
        court.vote(CaseId(7), []),
        court.decide(CaseId(7), []),
    ):
        refused(world.evm, "phase", BOSS.address, call)
    assert world.evm.ask(court.case(CaseId(7))).phase == 0


@pytest.mark.rule("5.67")
def test_a_bond_that_cannot_be_pulled_opens_nothing() -> None:
    world = peopled()
    pair = [world.execution(ACCUSED, client) for client in CLIENTS[:2]]
    refused(world.evm, "allowance", BOSS.address, _shown(world, *pair))
    assert world.evm.ask(world.contracts.stakes.frozen(ACCUSED)) == 0
    assert world.evm.ask(world.contracts.stakes.slot(CLASS, 0)).owner == ACCUSED
