"""Tests payrolls, the limits of a day, and who spends them."""

from typing import Any

import pytest

from contracts.world import World, account, market, pair
from quorate_protocol.limits import DAY, USD
from quorate_protocol.units import ZERO_ADDRESS

C, K, P, Q, ANY = "client0", "coordinator", "owner0", "owner1", "stranger"
POSTER, ROOT = f"{K} posting", b"\2" * 32


@pytest.fixture(scope="module")
def funded() -> World:
    world = market()
    world.fund(K, 1000 * USD)
    world.send(K, world.escrow, "deposit", 100 * USD, ZERO_ADDRESS)
    world.send(K, world.escrow, "set_limits", 50, 40)
    return world


@pytest.fixture
def world(funded: World) -> World:
    return funded.fork()


def pay(world: World, *pays: tuple[str, int], who: str = POSTER) -> Any:
    call = (account(K), ROOT, [pair(*each) for each in pays])
    return world.send(who, world.escrow, "payroll", *call)


def refused(world: World, reason: str, *pays: tuple[str, int], who: str = POSTER) -> None:
    call = (account(K), ROOT, [pair(*each) for each in pays])
    world.refused(reason, who, world.escrow, "payroll", *call)


def lock(world: World, amount: int, who: str = POSTER) -> Any:
    return world.send(who, world.escrow, "lock_many", account(K), [pair(P, amount)])


def limits(world: World) -> tuple[int, ...]:
    return tuple(world.ask(world.escrow, "limits_of", account(K)))


@pytest.mark.rule("6.68")
def test_a_payroll_is_credit_of_each_payee_and_pays_once(world: World) -> None:
    event = pay(world, (P, 20), (Q, 10), (P, 25)).one("Payroll")
    assert (event.payer, event.root, event.amount) == (account(K), ROOT, 35)
    for again in ((P, 25), (P, 3)):
        assert pay(world, again).one("Payroll").amount == 0
    assert world.tab(K, P) == (25, 25, 0, 0) and world.tab(K, Q) == (10, 10, 0, 0)
    assert world.balance(K) == 100 * USD - 35 and limits(world) == (50, 35, 40, 0)


@pytest.mark.rule("6.68")
def test_a_payroll_leaves_locks_and_vouchers_their_place(world: World) -> None:
    lock(world, 30)
    pay(world, (P, 20))
    assert world.tab(K, P) == (50, 20, 0, 0)
    voucher = world.voucher(K, P, 45, f"{K} statement")
    world.send(ANY, world.escrow, "redeem", account(P), bytes(32), [], [voucher])
    pay(world, (P, 45))
    pay(world, (P, 46))
    assert world.tab(K, P) == (51, 46, 0, 0)
    world.send(ANY, world.escrow, "draw", account(P), [account(K)])
    assert world.tokens(P) == 46, "an owner without a payout address"


@pytest.mark.rule("6.69")
@pytest.mark.parametrize("who", [K, f"{K} statement", "coordinator2 posting", P, ANY])
def test_only_the_posting_key_pays_and_locks(world: World, who: str) -> None:
    world.coordinator("coordinator2")
    refused(world, "signer", (P, 1), who=who)
    world.refused("signer", who, world.escrow, "lock_many", account(K), [pair(P, 1)])
    world.send(K, world.stakes, "change_posting_key", account("fresh"))
    refused(world, "signer", (P, 1))
    pay(world, (P, 1), who="fresh")


@pytest.mark.rule("6.69")
def test_payroll_and_locks_have_a_limit_each(world: World) -> None:
    two = [pair(P, 21), pair(Q, 20)]
    world.send(POSTER, world.escrow, "set_limits", 10**9, 10**9)  # of its own account
    world.refused("limit", POSTER, world.escrow, "lock_many", account(K), two)
    lock(world, 40)
    world.refused("limit", POSTER, world.escrow, "lock_many", account(K), [pair(P, 1)])
    refused(world, "limit", (P, 51))
    pay(world, (P, 50))
    refused(world, "limit", (P, 51))
    assert limits(world) == (50, 50, 40, 40)
    world.send(K, world.escrow, "lock", account(Q), 100)  # the account itself has no limit


@pytest.mark.rule("6.69", "6.71")
def test_what_a_posting_key_gives_back_counts_as_locks(world: World) -> None:
    world.fund(C, 100)
    world.send(C, world.escrow, "deposit", 100, account(K))
    back = (account(C), account(K))
    lock(world, 10)
    world.refused("limit", POSTER, world.escrow, "give_back", *back, 31)
    world.send(POSTER, world.escrow, "give_back", *back, 30)
    world.refused("limit", POSTER, world.escrow, "lock_many", account(K), [pair(P, 1)])
    world.send(K, world.escrow, "give_back", *back, 70)


@pytest.mark.rule("6.69")
def test_a_day_ends_at_midnight_of_utc(world: World) -> None:
    world.evm.now += DAY - world.now % DAY - 1
    pay(world, (P, 50))
    lock(world, 40)
    refused(world, "limit", (P, 51))
    world.evm.travel(1)
    assert limits(world) == (50, 0, 40, 0)
    pay(world, (P, 100))
    lock(world, 40)
    refused(world, "limit", (P, 101))
    world.refused("limit", POSTER, world.escrow, "lock_many", account(K), [pair(P, 1)])


def test_another_limit_leaves_what_was_spent(world: World) -> None:
    pay(world, (P, 30))
    lock(world, 20)
    event = world.send(K, world.escrow, "set_limits", 20, 10).one("LimitsSet")
    assert (event.payroll, event.locks) == (20, 10) and limits(world) == (20, 30, 10, 20)
    refused(world, "limit", (P, 31))
    world.send(K, world.escrow, "set_limits", 31, 21)
    pay(world, (P, 31))
    lock(world, 1)
    refused(world, "limit", (P, 32))
    most = 2**60 - 1
    for limit in ((most + 1, most), (most, most + 1)):
        world.refused("amount", K, world.escrow, "set_limits", *limit)
    world.send(K, world.escrow, "set_limits", most, most)
    assert limits(world) == (most, 31, most, 21) and world.balance(K) == 100 * USD - 31 - 21


def test_a_payroll_needs_a_balance_and_fits_its_words(world: World) -> None:
    world.send(K, world.escrow, "set_limits", 2**60 - 1, 2**60 - 1)
    refused(world, "amount", (P, 100 * USD + 1))
    for sum_ in (2**60, 2**96 - 1):
        refused(world, "amount", (P, sum_))
    world.send(K, world.escrow, "lock", account(P), 1)
    refused(world, "amount", (P, 2**60 - 1))
    refused(world, "amount", (Q, 2**60 - 1))
    pay(world, (P, 100 * USD - 1))
    assert world.balance(K) == 0
    most = 2**60 - 1 - world.tokens(world.escrow.address)
    world.fund(K, most + 1)
    world.send(K, world.escrow, "deposit", most, ZERO_ADDRESS)
    pay(world, (P, 100 * USD - 1 + most))
    world.send(ANY, world.escrow, "draw", account(P), [account(K)])
    world.send(K, world.escrow, "deposit", 1, ZERO_ADDRESS)
    world.evm.travel(DAY)
    refused(world, "amount", (P, 100 * USD + most))  # the tab's word has no room


def test_a_closing_tab_is_paid_by_payroll(world: World) -> None:
    world.send(K, world.escrow, "lock", account(P), 10)
    world.send(K, world.escrow, "close", account(P))
    world.refused("closing", POSTER, world.escrow, "lock_many", account(K), [pair(P, 1)])
    pay(world, (P, 30))
    world.evm.travel(14 * DAY + 1)
    world.send(ANY, world.escrow, "finish", account(K), account(P))
    assert world.tab(K, P) == (30, 30, 0, 0)
