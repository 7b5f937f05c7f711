"""Tests what an account signs for a relayer, who gets at most the fee that it allowed."""

import pytest

from contracts.world import World, account, market
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS

P, K, ANY = "owner0", "coordinator", "stranger"
CALLS = {"lock_for": (K, 10 * USD), "close_for": (K,), "withdraw_for": (10 * USD,)}


@pytest.fixture(scope="module")
def funded() -> World:
    world = market()
    world.provider(P)
    world.fund(P, 100 * USD)
    world.send(P, world.escrow, "deposit", 50 * USD, ZERO_ADDRESS)
    world.send(P, world.escrow, "lock", account(K), USD)
    return world


@pytest.fixture
def world(funded: World) -> World:
    return funded.fork()


@pytest.mark.rule("2.8")
@pytest.mark.parametrize("name", CALLS)
def test_a_request_is_taken_once_for_its_fee(world: World, name: str) -> None:
    request = world.relayed(name, P, *CALLS[name], fee=USD)
    sent = world.send(ANY, world.escrow, name, *request)
    paid = sent.one("Paid")
    assert (paid.sender, paid.receiver, paid.amount) == (account(P), account(ANY), USD)
    assert world.balance(ANY) == USD and world.ask(world.escrow, "request_nonce", account(P)) == 1
    world.refused("nonce", ANY, world.escrow, name, *request)


@pytest.mark.rule("2.8")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("expired", {"deadline": 0}),
        ("nonce", {"nonce": 1}),
        ("fee", {"fee": USD + 1}),
        ("signature", {"signer": f"{P} operator"}),
    ],
)
def test_requests_that_are_refused(world: World, name: str, reason: str, changes) -> None:  # type: ignore[no-untyped-def]
    request = world.relayed(name, P, *CALLS[name], **changes)
    world.refused(reason, ANY, world.escrow, name, *request)


def test_only_what_was_signed_is_taken(world: World) -> None:
    for name, arguments in CALLS.items():
        account_, *plain, terms, fee, sig = world.relayed(name, P, *arguments)
        for other in ((terms[0], terms[1] + 1, terms[2]), (terms[0], terms[1], terms[2] + 1)):
            call = (account_, *plain, other, fee, sig)
            world.refused("signature", ANY, world.escrow, name, *call)
    account_, payee, amount, *rest = world.relayed("lock_for", P, K, 10)
    world.refused("signature", ANY, world.escrow, "lock_for", account_, payee, amount + 1, *rest)
    elsewhere = account("coordinator2")
    world.refused("signature", ANY, world.escrow, "lock_for", account_, elsewhere, amount, *rest)
    world.refused("signature", ANY, world.escrow, "close_for", account_, payee, *rest)


def test_a_request_counts_in_the_second_of_its_deadline(world: World) -> None:
    request = world.relayed("close_for", P, K, deadline=world.now)
    world.send(ANY, world.escrow, "close_for", *request)
    assert world.tab(P, K)[3] > 0


def test_what_is_relayed_is_what_the_account_does_itself(world: World) -> None:
    world.send(ANY, world.escrow, "lock_for", *world.relayed("lock_for", P, K, 9 * USD, fee=USD))
    assert world.tab(P, K)[0] == 10 * USD and world.balance(P) == 39 * USD
    request = world.relayed("withdraw_for", P, 39 * USD, fee=USD)
    event = world.send(ANY, world.escrow, "withdraw_for", *request).one("Withdrawn")
    assert (event.receiver, event.amount) == (account(f"{P} payout"), 38 * USD)
    assert world.tokens(f"{P} payout") == 38 * USD
    assert (world.balance(P), world.balance(ANY)) == (0, 2 * USD)


@pytest.mark.rule("2.9")
def test_a_fee_comes_from_the_balance_or_out_of_what_is_withdrawn(world: World) -> None:
    for amount in (USD - 1, USD):
        request = world.relayed("withdraw_for", P, amount, fee=USD)
        world.refused("fee", ANY, world.escrow, "withdraw_for", *request)
    world.send(P, world.escrow, "withdraw", 49 * USD)
    for name in ("lock_for", "close_for"):
        request = world.relayed(name, P, *CALLS[name], fee=1)
        world.refused("amount", ANY, world.escrow, name, *request)
    world.send(ANY, world.escrow, "close_for", *world.relayed("close_for", P, K))
