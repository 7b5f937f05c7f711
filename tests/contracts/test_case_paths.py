"""Tests the evidence of an order that covers several specs: path to the root, and one budget."""

import pytest

from contracts.evm import refused
from contracts.market import ACCUSER, STATEMENT, key, peopled
from contracts.trial import TRUTH, Trial, money
from quorate_contracts.bindings.events import CaseOpened
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import root_of_path
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.units import Amount, Price, PriceTier
from quorate_protocol.values import replace

ACCUSED = key("owner0").address
CLIENTS = [key(f"client{i}") for i in range(3)]
PAY = 30 * 120_000_000 // 3600
FLOOR = DEVNET.jury_pay_min
PRICE = {"price_per_hour": Price(120_000_000), "max_price_per_hour": Price(120_000_000)}
PATH = tuple(keccak256(b"sibling %d" % number) for number in range(20))


@pytest.mark.rule("5.118")
@pytest.mark.parametrize("length", [1, 2, 20])
def test_a_case_takes_a_spec_under_the_orders_root_and_logs_it(length: int) -> None:
    world = peopled()
    path = PATH[:length]
    trial = Trial(
        world, [world.execution(ACCUSED, client, b"lie", path=path) for client in CLIENTS[:2]]
    )
    event = next(each for each in trial.open().events if isinstance(each, CaseOpened))
    for each, logged in zip(trial.evidence, event.spec_hashes, strict=False):
        order, assignment = each.shown.job.order.message, each.shown.run.assignment.message
        assert order.spec_hash == root_of_path(assignment.spec_hash, path) != assignment.spec_hash
        assert logged == assignment.spec_hash
    trial.judged([TRUTH[:2]] * 7)
    money(world)


@pytest.mark.rule("5.118")
def test_a_spec_that_is_not_under_the_orders_root_is_refused() -> None:
    world = peopled()
    good = world.execution(ACCUSED, CLIENTS[1], path=PATH[:3])
    other = world.execution(ACCUSED, CLIENTS[0], path=PATH[:3])
    for path in ((), PATH[:2], PATH[1:4], (*PATH[:3], PATH[3])):
        wrong = replace(other.shown, path=path)
        call = world.contracts.cases.open_case([good.shown, wrong])
        refused(world.evm, "spec", ACCUSER.address, call)
    plain = replace(world.execution(ACCUSED, CLIENTS[0]).shown, path=PATH[:1])
    refused(
        world.evm, "spec", ACCUSER.address, world.contracts.cases.open_case([good.shown, plain])
    )


@pytest.mark.rule("3.73")
def test_an_assignment_of_another_price_tier_than_its_order_is_refused() -> None:
    world = peopled()
    good, other = world.execution(ACCUSED, CLIENTS[1]), world.execution(ACCUSED, CLIENTS[0])
    body = replace(other.shown.run.assignment.message, price_tier=PriceTier.SPOT)
    run = replace(other.shown.run, assignment=seal(world.domain, body, STATEMENT.sign))
    wrong = replace(other.shown, run=run)
    refused(
        world.evm, "price", ACCUSER.address, world.contracts.cases.open_case([good.shown, wrong])
    )


@pytest.mark.rule("5.80")
@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (3 * PAY, (PAY, PAY, PAY)),
        (2 * PAY + 2 * FLOOR, (PAY, PAY, 2 * FLOOR)),
        (PAY, (PAY, FLOOR, FLOOR)),
    ],
)
def test_the_pays_of_one_order_are_together_at_most_its_budget(
    budget: int, expected: tuple[int, int, int]
) -> None:
    world = peopled()
    first = world.execution(ACCUSED, CLIENTS[0], budget=Amount(budget), **PRICE)
    order = first.shown.job.order
    others = [world.execution(ACCUSED, CLIENTS[0], order=order, **PRICE) for _ in range(2)]
    event = next(
        each
        for each in Trial(world, [first, *others]).open().events
        if isinstance(each, CaseOpened)
    )
    assert event.pays == expected
    other = world.execution(ACCUSED, CLIENTS[1], budget=Amount(budget))
    money(world)
    assert other.shown.job.order.digest(world.domain) != order.digest(world.domain)
