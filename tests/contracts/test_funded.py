"""Tests orders with an escrow of their own: what evidence counts, and what it pays."""

from typing import Any

import pytest

from contracts.executions import HOUR
from contracts.funded import FundedOrder
from contracts.world import CLASS, EVIDENCE_AGE, EVIDENCE_WINDOW, World, account, market
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS

C, K, ANY = "client0", "coordinator", "stranger"
P = [f"owner{number}" for number in range(9)]
FULL = USD  # half an hour
SINCE = HOUR  # from the order's Assignments to the present of a test


def peopled() -> World:
    world = market()
    for owner in P[:8]:
        world.provider(owner)
    world.provider(P[8], slots=0)
    world.fund(C, 100 * USD)
    world.send(C, world.escrow, "deposit", 50 * USD, ZERO_ADDRESS)
    return world


@pytest.fixture(scope="module")
def market_with_owners() -> World:
    return peopled()


@pytest.fixture
def world(market_with_owners: World) -> World:
    return market_with_owners.fork()


@pytest.fixture
def order(world: World) -> FundedOrder:
    """A funded order whose executions have ended."""
    made = FundedOrder(world)
    made.fund()
    world.evm.travel(SINCE)
    return made


@pytest.mark.rule("6.75")
def test_evidence_without_a_flaw_is_taken(order: FundedOrder) -> None:
    run = order.run(P[0])
    event = order.world.send(ANY, order.world.jobs, "show", order.values, run).one("Shown")
    assert (event.client, event.provider) == (account(C), account(P[0]))
    assert (event.jobId, event.pay, event.count) == (order.job_id, FULL, 1)
    assert order.state()[2:] == (order.world.now, order.world.now, 1, 0)


FLAWS: dict[str, tuple[str, dict[str, Any]]] = {
    "an index that the blind does not hide": ("blind", {"shown_index": 2}),
    "another job's Assignment": ("blind", {"assignmentId": b"\1" * 32}),
    "another coordinator": ("coordinator", {"coordinator": account(ANY)}),
    "another program": ("spec", {"specHash": b"\1" * 32}),
    "another price tier": ("price", {"priceTier": 1}),
    "a price above the order's": ("price", {"pricePerHour": 3 * USD + 1}),
    "longer than ordered": ("duration", {"maxDuration": HOUR + 1}),
    "no key of the coordinator": ("assignment", {"by_statement": f"{P[1]} operator"}),
    "the coordinator's posting key": ("assignment", {"by_statement": f"{K} posting"}),
    "a Commit to another Assignment": ("commit", {"assignmentHash": b"\1" * 32}),
    "a Commit by another owner": ("commit", {"by_operator": f"{P[1]} operator"}),
    "a Commit by the coordinator": ("commit", {"by_operator": f"{K} statement"}),
    "no receipt of the coordinator": ("receipt", {"by_receipt": f"{P[0]} operator"}),
    "another salt": ("opening", {"salt": b"\1" * 32}),
    "another commitment": ("opening", {"commitment": b"\1" * 32}),
    "a copy of another owner's": ("commit", {"provider": account(P[1])}),
    "an owner without stake": ("stake", {"provider": account(P[8])}),
    "a stranger as provider": ("stake", {"provider": account(ANY)}),
}


@pytest.mark.rule("6.75")
@pytest.mark.parametrize("name", FLAWS)
def test_evidence_with_a_flaw_is_refused(order: FundedOrder, name: str) -> None:
    reason, changes = FLAWS[name]
    order.refused(reason, "show", order.run(P[0], **changes))


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("", {"priceTier": 2, "pricePerHour": 3 * USD, "maxDuration": HOUR}),
        ("", {"pricePerHour": 0}),
        ("", {"maxDuration": 60}),
        ("", {"acceptBy": -1}),
        ("early", {"acceptBy": 0, "time": -1}),
        ("", {"time": 0}),
        ("time", {"time": 1}),
        ("", {"acceptBy": -1, "time": -121}),
        ("time", {"acceptBy": -1, "time": -122}),
    ],
)
def test_bounds_of_what_counts(order: FundedOrder, reason: str, changes: dict[str, int]) -> None:
    """Moments count from now."""
    now = order.world.now
    moments = {k: now + v for k, v in changes.items() if k in ("acceptBy", "time")}
    moments = {"time": now} | moments if "acceptBy" in changes else moments
    order.expect(reason, "show", order.run(P[0], **(changes | moments)))


@pytest.mark.parametrize("late", [0, 1])
def test_an_order_assigns_nothing_a_day_after_its_expiry(world: World, late: int) -> None:
    order = FundedOrder(world)
    order.fund()
    world.evm.travel(3 * DAY)
    moment = order.named["expiry"] + DAY + late
    order.expect("expired" * late, "show", order.run(P[0], acceptBy=moment, time=moment))


@pytest.mark.rule("6.77")
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("duration", [60, HOUR])
def test_old_evidence_does_nothing(world: World, late: int, duration: int) -> None:
    order = FundedOrder(world)
    order.fund(days=300)
    world.evm.now = order.accept_by + duration + EVIDENCE_AGE + late
    order.expect("old" * late, "show", order.run(P[0], maxDuration=duration))


@pytest.mark.parametrize(
    ("who", "key", "reason"),
    [
        (K, "by_statement", "assignment"),
        (K, "by_receipt", "receipt"),
        (P[0], "by_operator", "commit"),
    ],
)
@pytest.mark.parametrize("late", [0, 1])
def test_a_replaced_key_signs_nothing_later(
    world: World, who: str, key: str, reason: str, late: int
) -> None:
    order = FundedOrder(world)
    order.fund()
    world.evm.travel(SINCE)
    old = f"{K} statement" if who == K else f"{P[0]} operator"
    world.send(who, world.stakes, "rotate_key", account("fresh"))
    moment = world.now + late
    world.evm.travel(HOUR)
    signed = {"by_statement": "fresh", "by_receipt": "fresh"} if who == K else {}
    accept_by = moment
    if key == "by_receipt":
        signed["by_statement"], accept_by = old, moment - 5
    run = order.run(P[0], acceptBy=accept_by, time=moment, **(signed | {key: old}))
    order.expect(reason * late, "show", run)


def test_an_order_names_the_class_of_its_machines(world: World) -> None:
    for number, (pool, reason) in enumerate(((CLASS, ""), (b"\1" * 32, "class"))):
        order = FundedOrder(world, nonce=number, changes={"pool": pool})
        order.fund()
        world.evm.travel(SINCE)
        order.expect(reason, "show", order.run(P[0]))


def test_evidence_counts_once_and_for_its_own_order(order: FundedOrder) -> None:
    order.show(P[0])
    order.refused("shown", "show", order.run(P[0], b"another"))
    other = FundedOrder(order.world, nonce=2)
    other.refused("unknown", "show", other.run(P[0]))
    other = FundedOrder(order.world, client="client1")
    order.world.send(C, order.world.jobs, "fund", other.job_id, USD, order.world.now + DAY)
    other.refused("unknown", "show", other.run(P[0]))
    for owner in P[1:7]:
        order.show(owner)
    order.refused("count", "show", order.run(P[7]))


@pytest.mark.rule("6.76")
def test_what_was_committed_after_the_first_result_is_a_copy(order: FundedOrder) -> None:
    order.show(P[0], time=order.world.now - 60)
    first = order.world.now
    order.world.evm.travel(60)
    order.refused("copied", "show", order.run(P[1], time=first + 1))
    order.show(P[1], time=first)
    order.refused("copied", "show", order.run(P[2], time=first + 1))


@pytest.mark.rule("6.74")
@pytest.mark.parametrize(
    ("reason", "budget", "until"),
    [
        ("", 1, 1),
        ("time", 1, 0),
        ("time", 1, -DAY),
        ("", 1, 400 * DAY),
        ("time", 1, 400 * DAY + 1),
        ("amount", 0, DAY),
        ("", 50 * USD, DAY),
        ("amount", 50 * USD + 1, DAY),
    ],
)
def test_what_funds_an_order(world: World, reason: str, budget: int, until: int) -> None:
    order = FundedOrder(world)
    call = (order.job_id, budget, world.now + until)
    if reason:
        return world.refused(reason, C, world.jobs, "fund", *call)
    event = world.send(C, world.jobs, "fund", *call).one("Funded")
    assert (event.client, event.budget, event.until) == (account(C), budget, call[2])
    assert world.balance(C) == 50 * USD - budget
    world.refused("funded", C, world.jobs, "fund", *call)
    return None


@pytest.mark.rule("6.74")
def test_a_strangers_funding_takes_no_place(world: World) -> None:
    order = FundedOrder(world)
    for who in ("client1", C):
        if who != C:
            world.fund(who, USD)
            world.send(who, world.escrow, "deposit", USD, ZERO_ADDRESS)
        world.send(who, world.jobs, "fund", order.job_id, USD, world.now + 20 * DAY)
    world.evm.travel(SINCE)
    order.show(P[0])
    assert order.state()[4] == 1


def shown(order: FundedOrder, answers: str) -> list[str]:
    """One owner shows each answer, ten seconds apart."""
    for owner, answer in zip(P, answers, strict=False):
        order.show(owner, answer.encode(), time=order.accept_by + 1805)
        order.world.evm.travel(10)
    return P[: len(answers)]


@pytest.mark.rule("6.78", "6.91")
@pytest.mark.parametrize(
    ("answers", "paid"),
    [
        ("aa", "aa"),
        ("aab", "aa"),
        ("baca", "aa"),
        ("aabb", "aabb"),
        ("aabbb", "bbb"),
        ("ababc", "abab"),
        ("aaaaaaa", "aaaaaaa"),
        ("aabbccd", "aabbcc"),
        ("ab", ""),
        ("abc", ""),
    ],
)
def test_the_largest_groups_are_paid_once(order: FundedOrder, answers: str, paid: str) -> None:
    world, before = order.world, order.world.balance(C)
    owners = shown(order, answers)
    last = order.state()[3]
    ready = last + EVIDENCE_WINDOW if paid else order.state()[1]
    world.evm.now = ready
    order.refused("early", "pay", sorted(account(each) for each in owners))
    world.evm.travel(1)
    order.pay(*owners)
    due = len(paid) * FULL + len(paid) * FULL * 300 // 10_000
    share = min(due, 6 * USD)
    pays = [FULL * share // max(due, 1) if answer in paid else 0 for answer in answers]
    fee = len(paid) * FULL * 300 // 10_000 * share // max(due, 1)
    assert [world.balance(owner) for owner in owners] == pays and world.balance(K) == fee
    assert world.balance(C) - before == 6 * USD - sum(pays) - fee
    assert world.balance(world.jobs.address) == 0 and order.state()[5] == 1
    order.refused("over", "pay", sorted(account(each) for each in owners))
    order.refused("over", "show", order.run(P[7]))
    order.refused("over", "release", who=K)
    world.refused("over", C, world.jobs, "reclaim", account(C), order.job_id)


def test_an_owner_is_paid_as_events_say(order: FundedOrder) -> None:
    owners = shown(order, "aa")
    order.world.evm.travel(EVIDENCE_WINDOW)
    listed = sorted(account(each) for each in owners)
    event = order.world.send(ANY, order.world.jobs, "pay", order.values, listed).one("JobPaid")
    assert (event.client, event.jobId) == (account(C), order.job_id)
    assert (event.amount, event.fee) == (2 * FULL, 2 * FULL * 300 // 10_000)


@pytest.mark.parametrize("what", ["classId", "exit"])
def test_another_class_or_exit_status_is_another_result(order: FundedOrder, what: str) -> None:
    order.show(P[0])
    order.show(P[1], **({"classId": b"\1" * 32} if what == "classId" else {"status": 1}))
    order.world.evm.travel(EVIDENCE_WINDOW + 1)
    order.refused("early", "pay", sorted(account(each) for each in P[:2]))


@pytest.mark.parametrize(
    ("changes", "pay"),
    [
        ({"usageMs": 1_800_000}, USD),
        ({"usageMs": 0}, 0),
        ({"usageMs": 2**64 - 1}, 2 * 3485 * USD // 3600),
        ({"usageMs": 2**64 - 1, "maxDuration": 600}, 2 * 600 * USD // 3600),
        ({"usageMs": 2**64 - 1, "time": 0}, 2 * 120 * USD // 3600),
        ({"usageMs": 2**64 - 1, "time": -120}, 0),
        ({"usageMs": 1_799_999}, 1_799_999 * 2 * USD // 3_600_000),
        ({"pricePerHour": 3 * USD}, 3 * USD // 2),
    ],
)
def test_pay_is_usage_bounded_by_what_others_signed(
    order: FundedOrder, changes: dict[str, int], pay: int
) -> None:
    moment = order.accept_by + changes.get("time", 3365)
    run = order.run(P[0], **(changes | {"time": moment}))
    event = order.world.send(ANY, order.world.jobs, "show", order.values, run).one("Shown")
    assert event.pay == pay


@pytest.mark.rule("6.78")
def test_a_budget_bounds_each_pay_and_their_sum(world: World) -> None:
    order = FundedOrder(world)
    order.fund(budget=100)
    world.evm.travel(SINCE)
    order.show(P[0], usageMs=1800)
    order.show(P[1])
    world.evm.travel(EVIDENCE_WINDOW + 1)
    order.pay(P[0], P[1])
    assert [world.balance(each) for each in (P[0], P[1], K)] == [48, 48, 2]  # 100 + 100 + 6
    assert world.balance(C) == 50 * USD - 100 + 2


@pytest.mark.rule("6.77")
def test_evidence_of_the_last_second_opens_another_window(order: FundedOrder) -> None:
    shown(order, "aa")
    order.world.evm.now = order.state()[3] + EVIDENCE_WINDOW
    order.show(P[2], b"b", time=order.state()[2])
    order.world.evm.travel(1)
    order.refused("early", "pay", sorted(account(each) for each in P[:3]))
    order.world.evm.travel(EVIDENCE_WINDOW)
    order.pay(*P[:3])


@pytest.mark.rule("6.77")
def test_evidence_is_taken_until_the_last_second(world: World) -> None:
    order = FundedOrder(world)
    order.fund(days=1)
    world.evm.travel(SINCE)
    order.show(P[0])
    world.evm.now = order.state()[1]
    order.show(P[1], time=order.state()[2])
    world.refused("early", C, world.jobs, "reclaim", account(C), order.job_id)
    order.refused("early", "pay", sorted(account(each) for each in P[:2]))
    world.evm.travel(1)
    order.refused("late", "show", order.run(P[2]))
    world.refused("shown", C, world.jobs, "reclaim", account(C), order.job_id)
    order.pay(*P[:2])


def test_a_payment_lists_all_owners_in_order(order: FundedOrder) -> None:
    shown(order, "aab")
    order.world.evm.travel(EVIDENCE_WINDOW)
    listed = sorted(account(each) for each in P[:3])
    order.refused("providers", "pay", listed[::-1])
    order.refused("providers", "pay", [listed[0], listed[0], listed[2]])
    order.refused("providers", "pay", sorted([*listed[:2], account(P[4])]))
    for wrong in (listed[:2], [*listed, account(P[4])], []):
        order.refused("count", "pay", wrong)


@pytest.mark.rule("6.79")
@pytest.mark.parametrize("executions", [0, 1])
def test_a_client_takes_back_what_nobody_earned(world: World, executions: int) -> None:
    order = FundedOrder(world)
    order.fund()
    world.evm.travel(SINCE)
    shown(order, "a" * executions)
    world.evm.now = order.state()[1]
    world.refused("early", C, world.jobs, "reclaim", account(C), order.job_id)
    order.refused("early", "pay", [account(each) for each in P[:executions]])
    world.evm.travel(1)
    other = order.fork()
    other.pay(*P[:executions])
    sent = world.send(ANY, world.jobs, "reclaim", account(C), order.job_id)
    assert sent.one("Returned").amount == 6 * USD
    for each in (world, other.world):
        assert each.balance(C) == 50 * USD and each.balance(each.jobs.address) == 0
    world.refused("over", ANY, world.jobs, "reclaim", account(C), order.job_id)
    world.refused("unknown", ANY, world.jobs, "reclaim", account(ANY), order.job_id)


@pytest.mark.rule("6.79")
@pytest.mark.parametrize("who", [K, f"{K} posting"])
def test_a_coordinator_releases_what_it_assigned_to_nobody(order: FundedOrder, who: str) -> None:
    """Evidence still has a window: a provider may have revealed to the coordinator just before."""
    world = order.world
    for stranger in (C, f"{K} statement", P[0], ANY):
        order.refused("signer", "release", who=stranger)
    shown_first = order.fork()
    shown_first.show(P[0])
    shown_first.refused("shown", "release", who=who)
    event = world.send(who, world.jobs, "release", order.values).one("Released")
    assert event.until == order.state()[1] == world.now + EVIDENCE_WINDOW
    world.evm.travel(EVIDENCE_WINDOW)
    world.send(who, world.jobs, "release", order.values)
    assert order.state()[1] == world.now, "a release prolongs nothing"
    world.evm.travel(1)
    world.send(ANY, world.jobs, "reclaim", account(C), order.job_id)
    assert world.balance(C) == 50 * USD
