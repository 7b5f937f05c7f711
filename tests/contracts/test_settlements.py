"""Tests of single jobs that are settled from their signed evidence (PROTOCOL §6)."""

import pytest

from contracts.epoch_leaves import post
from contracts.evm import refused
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key, peopled, session_key
from contracts.settlement_evidence import (
    CLIENT,
    OWNERS,
    PAY,
    credited,
    credits,
    job,
    opened,
    shown,
    voucher,
)
from contracts.trial import money
from quorate_contracts.bindings.settlement import NONCE_MAX, JobEvidence, Opening
from quorate_contracts.bindings.settlement_events import (
    JobSettled,
    SettlementAnswered,
    SettlementOutvoted,
)
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import ZERO_HASH, Amount, Nonce

C = COORDINATOR.address


@pytest.fixture
def world() -> Market:
    made = peopled()
    made.evm.travel(100)
    return made


@pytest.mark.rule("6.23", "6.33")
def test_two_executions_that_agree_are_credited_at_once_by_the_coordinator(world: Market) -> None:
    settlement, escrow = world.contracts.settlement, world.contracts.escrow
    evidence = job(world, CLIENT, 7)
    refused(world.evm, "signer", CLIENT.address, settlement.settle_job(evidence))
    mined = world.evm.send(POSTER.address, settlement.settle_job(evidence))
    (event,) = mined.events
    assert isinstance(event, JobSettled) and event.amount == 2 * PAY
    assert credits(world) == [PAY, PAY, 0]
    allocation = world.evm.ask(escrow.allocation(CLIENT.address, C))
    assert (allocation.allocated, allocation.charged) == (50 * USD, 2 * PAY)
    assert world.evm.ask(settlement.settled(CLIENT.address, C, Nonce(7))) == (0, 1)
    world.evm.send(BOSS.address, escrow.pay_credit(OWNERS[0]))
    assert world.balance(key("payout0").address) == PAY
    refused(world.evm, "amount", BOSS.address, escrow.pay_credit(OWNERS[0]))
    money(world)


@pytest.mark.rule("6.23")
def test_many_jobs_are_settled_in_one_transaction(world: Market) -> None:
    post(world, 1, [Leaf(1, C, Amount(1), Amount(0), ZERO_HASH)], voucher(world, 1, 0))
    jobs = [job(world, CLIENT, nonce, OWNERS[nonce % 7 : nonce % 7 + 2]) for nonce in range(32)]
    call = world.contracts.settlement.settle_many(C, jobs)
    assert len(world.evm.send(POSTER.address, call).events) == 32
    assert sum(credits(world, 9)) == 64 * PAY
    refused(world.evm, "settled", POSTER.address, call)
    money(world)


@pytest.mark.rule("6.23", "6.24")
def test_anybody_settles_a_job_that_its_coordinator_does_not_answer(world: Market) -> None:
    opening = opened(world, job(world, CLIENT, 7))
    execute = world.contracts.settlement.execute(opening)
    refused(world.evm, "early", BOSS.address, execute)
    world.evm.travel(DEVNET.settle_response)
    world.evm.send(BOSS.address, execute)
    assert credits(world) == [PAY, PAY, 0]
    refused(world.evm, "opened", BOSS.address, execute)
    money(world)


@pytest.mark.rule("6.24")
def test_what_an_epoch_credits_is_not_settled(world: Market) -> None:
    settlement, evidence = world.contracts.settlement, job(world, CLIENT, 7)
    leaves = credited(world, evidence, PAY, PAY - 1_000)
    post(world, 1, leaves, voucher(world, 3 * PAY, 7))
    opening = opened(world, evidence)
    first = settlement.answer(opening, 0, shown(leaves, evidence, 0, PAY))
    (event,) = world.evm.send(POSTER.address, first).events
    assert isinstance(event, SettlementAnswered) and event.amount == PAY
    refused(world.evm, "opened", POSTER.address, first)
    changed = Opening.of(event.opening)
    again = settlement.answer(changed, 0, shown(leaves, evidence, 0, PAY))
    refused(world.evm, "amount", POSTER.address, again)
    other = settlement.answer(changed, 1, shown(leaves, evidence, 0, PAY))
    refused(world.evm, "proof", POSTER.address, other)
    more = settlement.answer(changed, 1, shown(leaves, evidence, 1, PAY))
    refused(world.evm, "proof", POSTER.address, more)
    last = settlement.answer(changed, 1, shown(leaves, evidence, 1, PAY - 1_000))
    (event,) = world.evm.send(POSTER.address, last).events
    assert isinstance(event, SettlementAnswered) and event.amount == 1_000
    world.evm.travel(DEVNET.settle_response)
    world.evm.send(BOSS.address, settlement.execute(Opening.of(event.opening)))
    assert credits(world) == [0, 1_000, 0], "the epoch pays the rest"


@pytest.mark.rule("6.25")
@pytest.mark.parametrize(
    ("providers", "reason"), [(OWNERS[:1], "count"), ((OWNERS[0], OWNERS[0]), "provider")]
)
def test_one_owner_alone_settles_nothing(
    world: Market, providers: tuple[bytes, ...], reason: str
) -> None:
    evidence = job(world, CLIENT, 7, providers)  # type: ignore[arg-type]
    refused(world.evm, reason, POSTER.address, world.contracts.settlement.settle_job(evidence))
    refused(world.evm, reason, BOSS.address, world.contracts.settlement.open(evidence))


@pytest.mark.rule("6.25")
def test_an_outvoted_result_is_not_settled(world: Market) -> None:
    """Two liars agree with each other. The coordinator shows the executions that outvoted them."""
    settlement = world.contracts.settlement
    liars = job(world, CLIENT, 7, OWNERS[:2], b"lie")
    truth = job(world, CLIENT, 7, OWNERS[2:5], first_index=2)
    opening = opened(world, liars)
    refused(world.evm, "result", POSTER.address, settlement.outvote(opening, liars))
    other = job(world, CLIENT, 8, OWNERS[2:5], first_index=2)
    refused(world.evm, "result", POSTER.address, settlement.outvote(opening, other))
    (event,) = world.evm.send(POSTER.address, settlement.outvote(opening, truth)).events
    assert isinstance(event, SettlementOutvoted)
    world.evm.travel(DEVNET.settle_response)
    refused(world.evm, "opened", BOSS.address, settlement.execute(opening))
    right = opened(world, truth)
    refused(world.evm, "count", BOSS.address, settlement.outvote(right, liars))


@pytest.mark.rule("6.26")
def test_three_executions_of_an_order_are_paid_at_most(world: Market) -> None:
    """So together they never cost more than the budget, of which each gets a third."""
    settlement = world.contracts.settlement
    small = {"budget": Amount(3 * 4_000)}
    first = job(world, CLIENT, 7, OWNERS[:2], **small)
    second = job(world, CLIENT, 7, OWNERS[2:5], first_index=2, **small)
    world.evm.send(POSTER.address, settlement.settle_job(first))
    world.evm.send(POSTER.address, settlement.settle_job(second))
    assert credits(world, 5) == [4_000, 4_000, 4_000, 0, 0]
    refused(world.evm, "settled", POSTER.address, settlement.settle_job(second))


@pytest.mark.rule("6.23")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expires": 1}, "expired"),
        ({"expiry": 1}, "expired"),
        ({"price_per_hour": 4 * USD}, "price"),
        ({"accept_by": 2**40}, "early"),
        ({"accept_by": 1_700_000_000}, "late"),
        ({"session_key": key("client1").address}, "order"),
        ({"host_class": keccak256(b"named")}, "commit"),
        ({"assignment_hash": keccak256(b"other")}, "commit"),
        ({"commitment": keccak256(b"other")}, "commit"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_evidence_that_does_not_fit_is_refused(
    world: Market, changes: dict[str, object], reason: str
) -> None:
    if "accept_by" in changes:
        changes = {**changes, "expires": 2**50, "expiry": 2**50}
    evidence = job(world, CLIENT, 7, **changes)
    if reason == "commit" and "host_class" in changes:
        evidence = job(world, CLIENT, 7)
        order = evidence.order.message
        named = seal(
            world.domain,
            type(order)(**{**_fields(order), "host_class": keccak256(b"named")}),
            session_key(CLIENT).sign,
        )
        evidence = JobEvidence(evidence.session, named, evidence.executions)
    refused(world.evm, reason, POSTER.address, world.contracts.settlement.settle_job(evidence))


def _fields(message: object) -> dict[str, object]:
    from msgspec.structs import asdict

    return asdict(message)  # type: ignore[arg-type]


@pytest.mark.rule("6.23")
@pytest.mark.parametrize(("part", "reason"), [("assignment", "assignment"), ("receipt", "receipt")])
def test_a_stranger_shows_the_coordinators_signatures(
    world: Market, part: str, reason: str
) -> None:
    from quorate_protocol.values import replace

    evidence = job(world, CLIENT, 7)
    first = evidence.executions[0]
    envelope = getattr(first, part)
    forged = replace(first, **{part: seal(world.domain, envelope.message, CLIENT.sign)})
    changed = replace(evidence, executions=(forged, *evidence.executions[1:]))
    refused(world.evm, reason, BOSS.address, world.contracts.settlement.open(changed))
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(changed))


@pytest.mark.rule("6.26")
def test_a_nonce_that_no_voucher_floor_can_pass_is_refused(world: Market) -> None:
    last = job(world, CLIENT, NONCE_MAX + 1)
    refused(world.evm, "amount", POSTER.address, world.contracts.settlement.settle_job(last))
    fits = job(world, CLIENT, NONCE_MAX)
    world.evm.send(POSTER.address, world.contracts.settlement.settle_job(fits))
    assert world.evm.ask(
        world.contracts.settlement.settled(CLIENT.address, C, Nonce(NONCE_MAX))
    ) == (0, 1)


@pytest.mark.rule("6.26")
def test_a_settlement_is_bounded_by_session_and_allocation(world: Market) -> None:
    settlement, escrow = world.contracts.settlement, world.contracts.escrow
    poor = job(world, CLIENT, 7, up_to=Amount(2 * PAY - 1))
    refused(world.evm, "amount", POSTER.address, settlement.settle_job(poor))
    world.evm.send(CLIENT.address, escrow.request_release(C, Amount(50 * USD - PAY)))
    world.evm.travel(DEVNET.allocation_release)
    evidence = job(world, CLIENT, 7)
    opening = opened(world, evidence)
    world.evm.send(CLIENT.address, escrow.finish_release(C))
    refused(world.evm, "allocation", POSTER.address, settlement.settle_job(evidence))
    world.evm.travel(DEVNET.settle_response)
    world.evm.send(BOSS.address, settlement.execute(opening))
    assert credits(world) == [PAY // 2, PAY // 2, 0], "what is left is shared"
    money(world)


@pytest.mark.rule("4.18", "6.23")
def test_usage_beyond_the_coordinators_receipt_is_not_paid(world: Market) -> None:
    """The time from acceptBy to the CommitReceipt plus 120 s bounds what a stranger settles."""
    long = {"usage_ms": 200_000, "max_duration": 300}
    opening = opened(world, job(world, CLIENT, 7, **long))
    assert {share.amount for share in opening.shares} == {900_000 * (25 + 120) // 3600}
