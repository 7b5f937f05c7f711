"""Two signatures that contradict each other: what they cost, how often, and who gains nothing."""

from typing import Any

import pytest

from contracts.court_world import ASSIGNMENT, COMMIT, CourtWorld, peopled_court
from contracts.executions import Message, assignment, commit
from contracts.world import CLASS, Sent, account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET, USD

ACK = (
    "Ack(bytes32 jobId,bytes32 pool,uint64 ackTime,uint64 slotBlock,bytes32 eligibleRoot,"
    "bytes32 stateRoot,bytes32 logRoot,uint64 logLength,bytes32 secretHash,uint8 rule,"
    "uint16 feeBps,bool escrowed)"
)
SLOT, FEE, AGE = DEVNET.slot_stake, DEVNET.jury_gas_fee, DEVNET.case_evidence_age
K = "coordinator"


@pytest.fixture
def world() -> CourtWorld:
    return peopled_court()


def two_commits(world: CourtWorld, **changes: Any) -> tuple[Any, ...]:
    """The arguments of `equivocation`. `changes` also name the signers and the second answer."""
    order = world.order(changes)
    body = assignment(world, order, "owner0", changes)
    one = commit(world, body, b"one", changes)
    other = commit(world, body, changes.get("second", b"two"), {})
    return (
        tuple(body.values()),
        world.signed(ASSIGNMENT, body, changes.get("signer", f"{K} statement")),
        tuple(one.values()),
        world.signed(COMMIT, one, changes.get("committer", "owner0 operator")),
        tuple(other.values()),
        world.signed(COMMIT, other, "owner0 operator"),
    )


def ack(world: CourtWorld, job: bytes, root: bytes, at: int) -> Message:
    return {
        "jobId": keccak256(job),
        "pool": CLASS,
        "ackTime": at,
        "slotBlock": 5,
        "eligibleRoot": keccak256(root),
        "stateRoot": keccak256(b"state"),
        "logRoot": keccak256(b"log"),
        "logLength": 1,
        "secretHash": keccak256(b"secret"),
        "rule": 1,
        "feeBps": 300,
        "escrowed": False,
    }


def acks(world: CourtWorld, job: bytes, *times: int, **changes: Any) -> tuple[Any, ...]:
    """The arguments of `two_acks`, with Acks of these times."""
    first, second = (
        ack(world, changes.get("jobs", (job, job))[k], changes.get("roots", (b"a", b"b"))[k], at)
        for k, at in enumerate(times)
    )
    key = changes.get("signer", f"{K} statement")
    pairs = [(tuple(each.values()), world.signed(ACK, each, key)) for each in (first, second)]
    return account(K), *pairs[0], *pairs[1]


def prove(world: CourtWorld, kind: str, arguments: tuple[Any, ...]) -> Sent:
    return world.send("stranger", world.faults, kind, *arguments)


@pytest.mark.rule("5.154", "5.156")
def test_a_first_pair_of_commits_costs_the_pay_and_a_tenth(world: CourtWorld) -> None:
    pair = two_commits(world, maxDuration=3600, pricePerHour=3 * USD)
    sent = prove(world, "equivocation", pair)
    taken = 3 * USD + SLOT // 10
    assert sent.one("FaultProven").taken == taken
    assert world.stake("owner0") == SLOT - taken and world.tokens("stranger") == FEE
    assert sent.one("Burned").values["reward"] == FEE
    world.refused("proven", "stranger", world.faults, "equivocation", *pair)


def test_a_cheap_job_costs_at_least_the_gas_and_a_dear_one_a_slot(world: CourtWorld) -> None:
    cheap = two_commits(world, maxDuration=1, pricePerHour=1)
    made = world.fork()
    assert prove(made, "equivocation", cheap).one("FaultProven").taken == FEE + SLOT // 10
    made.send("owner2", made.stakes, "open_slots", CLASS, 1)
    made.send("owner0", made.stakes, "open_slots", CLASS, 2)
    dear = two_commits(world, maxDuration=86_400, pricePerHour=100 * USD)
    world.send("owner0", world.stakes, "open_slots", CLASS, 2)
    assert prove(world, "equivocation", dear).one("FaultProven").taken == SLOT
    assert world.stake("owner0") == 2 * SLOT
    assert world.ask(world.stakes, "open_slots_of", account("owner0"), CLASS) == 3


@pytest.mark.parametrize(("usd", "slots"), [(40, 1), (41, 0)])
def test_half_of_a_stake_keeps_slots_open(world: CourtWorld, usd: int, slots: int) -> None:
    prove(world, "equivocation", two_commits(world, maxDuration=3600, pricePerHour=usd * USD))
    assert world.ask(world.stakes, "open_slots_of", account("owner0"), CLASS) == slots


@pytest.mark.rule("5.154")
@pytest.mark.parametrize(
    ("apart", "taken"),
    [(0, None), (AGE, None), (AGE + 1, SLOT), (90 * DAY - 1, SLOT), (90 * DAY, SLOT // 10 + FEE)],
)
def test_another_accident_costs_a_slot_and_the_same_one_nothing(
    world: CourtWorld, apart: int, taken: int | None
) -> None:
    """The evidence is proven as late as it counts, so only the signed times tell them apart."""
    world.send("owner0", world.stakes, "open_slots", CLASS, 2)
    first = world.now - 1
    pairs = [two_commits(world, acceptBy=at, maxDuration=1) for at in (first, first + apart)]
    world.evm.now = first + min(AGE, apart)
    prove(world, "equivocation", pairs[0])
    world.evm.now = first + apart
    if taken is None:
        world.refused("proven", "stranger", world.faults, "equivocation", *pairs[1])
    else:
        assert prove(world, "equivocation", pairs[1]).one("FaultProven").taken == taken


@pytest.mark.rule("5.155")
def test_acks_cost_a_tenth_and_then_a_slots_worth_of_the_bond(world: CourtWorld) -> None:
    at = world.now
    assert (
        prove(world, "two_acks", acks(world, b"a", at, at)).one("FaultProven").taken == SLOT // 10
    )
    world.refused("proven", "boss", world.faults, "two_acks", *acks(world, b"b", at - AGE, at))
    world.evm.travel(AGE + 1)
    later = prove(world, "two_acks", acks(world, b"b", at + 2, at + AGE + 1))
    assert later.one("FaultProven").taken == SLOT
    assert (
        world.ask(world.stakes, "bond_of", account(K)) == DEVNET.coordinator_bond - SLOT - 10 * USD
    )
    world.evm.travel(90 * DAY)
    again = prove(world, "two_acks", acks(world, b"c", world.now, world.now))
    assert again.one("FaultProven").taken == SLOT // 10


def test_one_job_counts_once_however_its_acks_are_paired(world: CourtWorld) -> None:
    start = world.now
    world.evm.travel(AGE)
    prove(world, "two_acks", acks(world, b"a", start, start + AGE))
    world.evm.travel(AGE)
    third = acks(world, b"a", start + AGE, start + 2 * AGE, roots=(b"b", b"c"))
    world.refused("proven", "stranger", world.faults, "two_acks", *third)


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "assignment of another signer": ("equivocation", "assignment", {"signer": "owner0 operator"}),
    "a commit of another signer": ("equivocation", "key", {"committer": "owner1 operator"}),
    "one commit twice": ("equivocation", "same", {"second": b"one"}),
    "a commit to another assignment": (
        "equivocation",
        "commit",
        {"assignmentHash": keccak256(b"x")},
    ),
    "acks of two jobs": ("two_acks", "job", {"jobs": (b"a", b"b")}),
    "one ack twice": ("two_acks", "same", {"roots": (b"a", b"a")}),
    "acks of another signer": ("two_acks", "key", {"signer": "owner0 operator"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_signatures_that_contradict_nothing_are_refused(world: CourtWorld, name: str) -> None:
    kind, reason, changes = REFUSED[name]
    at = world.now
    pair = two_commits(world, **changes) if kind == "equivocation" else ()
    made = pair or acks(world, b"a", at, at, **changes)
    world.refused(reason, "stranger", world.faults, kind, *made)


@pytest.mark.rule("5.156")
@pytest.mark.parametrize(
    ("seconds", "reason"), [(1, "early"), (0, ""), (-AGE, ""), (-AGE - 1, "late")]
)
def test_evidence_counts_a_week_and_none_of_the_future(
    world: CourtWorld, seconds: int, reason: str
) -> None:
    at = world.now + seconds
    for kind, made in (
        ("equivocation", two_commits(world, acceptBy=at)),
        ("two_acks", acks(world, b"a", at, world.now)),
    ):
        world.expect(reason, "stranger", world.faults, kind, *made)


def test_a_coordinator_that_lost_its_bond_assigns_nothing_that_counts(world: CourtWorld) -> None:
    changes = {"coordinator": account("owner3"), "signer": "owner3 operator"}
    pair = two_commits(world, **changes)
    world.refused("bond", "stranger", world.faults, "equivocation", *pair)


def test_a_coordinators_key_does_not_answer_for_its_bond_as_a_provider(world: CourtWorld) -> None:
    order = world.order({})
    body = assignment(world, order, K, {})
    commits = [commit(world, body, answer, {}) for answer in (b"one", b"two")]
    key = f"{K} statement"
    shown = [(tuple(each.values()), world.signed(COMMIT, each, key)) for each in commits]
    pair = (tuple(body.values()), world.signed(ASSIGNMENT, body, key), *shown[0], *shown[1])
    assert prove(world, "equivocation", pair).one("FaultProven").taken == 0
    assert world.ask(world.stakes, "bond_of", account(K)) == DEVNET.coordinator_bond


def test_a_providers_acks_cost_nothing_and_are_no_first_fault(world: CourtWorld) -> None:
    at = world.now
    made = acks(world, b"a", at, at, signer="owner0 operator")
    sent = prove(world, "two_acks", (account("owner0"), *made[1:]))
    assert sent.one("FaultProven").taken == 0
    taken = prove(world, "equivocation", two_commits(world)).one("FaultProven").taken
    assert taken == SLOT // 10 + FEE


@pytest.mark.rule("5.156")
def test_the_sender_never_gets_more_than_half(world: CourtWorld) -> None:
    """Otherwise a provider could prove its own fault and lose little of what it has left."""
    world.send("owner0", world.stakes, "exit")
    first = two_commits(world, pricePerHour=10**12, maxDuration=3600)
    prove(world, "equivocation", first)
    assert world.stake("owner0") == 0 and world.tokens("stranger") == FEE
    world.evm.travel(AGE + 5)
    assert prove(world, "equivocation", two_commits(world)).one("FaultProven").taken == 0
    assert world.tokens("stranger") == FEE
