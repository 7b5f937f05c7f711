"""Tests the halt of a coordinator that vanished.

Everybody takes what is theirs by the last good root. A part of the bond pays those to whom it had
promised more.
"""

import pytest

from contracts.challenged import (
    FEE,
    ROBBED,
    WATCHER,
    WINDOW,
    bond_of,
    credit_of,
    newest_valid,
    payout,
    posted,
    poster_call,
    send,
)
from contracts.epoch_leaves import CLIENT, OWNERS, C, claim, leaves, post
from contracts.evm import refused
from contracts.market import BOSS, POSTER, Market, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.challenges import EpochDemand
from quorate_contracts.bindings.events import Claimed, EpochDemanded, Halted
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, prove
from quorate_protocol.units import Amount, UnixSeconds

AFTER, SETTLE, HELD = DEVNET.halt_after, DEVNET.halt_settle, DEVNET.halt_held
CLIENTS = [key(f"client{i}").address for i in range(3)]


def halted() -> tuple[Market, list[Leaf]]:
    """Returns a market whose coordinator vanished.

    2 USD are charged, half a USD is credited and half a USD is held. A Statement of 600,000 is not
    in any epoch.
    """
    world = peopled()
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [
        Leaf(index + i, OWNERS[i], Amount(250_000), Amount(250_000), bytes(32)) for i in range(2)
    ]
    vouchers = [world.voucher(CLIENT, 1_500_000), world.voucher(key("client1"), 500_000)]
    post(world, 1, credits, *vouchers)
    demand = world.contracts.challenges.demand_epoch(C, world.statement(ROBBED, 600_000, epoch=2))
    send(world, demand)
    world.evm.travel(AFTER + 1)
    send(world, world.contracts.challenges.halt(C))
    return world, credits


@pytest.mark.rule("6.28", "6.47")
def test_a_vanished_coordinator_is_halted_by_anybody_who_holds_its_statement() -> None:
    world, credits = posted(400)
    challenges, statement = world.contracts.challenges, world.statement(ROBBED, 500, epoch=2)
    old = challenges.demand_epoch(C, world.statement(ROBBED, 500))
    refused(world.evm, "covered", WATCHER, old)
    forged = world.statement(ROBBED, 500, epoch=2, signer=key("somebody"))
    refused(world.evm, "signer", WATCHER, challenges.demand_epoch(C, forged))
    empty = challenges.demand_epoch(C, world.statement(ROBBED, 0, epoch=2))
    refused(world.evm, "amount", WATCHER, empty)
    refused(world.evm, "phase", WATCHER, challenges.halt(C))
    by = UnixSeconds(world.evm.now + AFTER)
    assert EpochDemanded(C, 2, by) in send(world, challenges.demand_epoch(C, statement)).events
    assert world.evm.ask(challenges.epoch_demand(C)) == EpochDemand(2, by, WATCHER)
    refused(world.evm, "phase", WATCHER, challenges.demand_epoch(C, statement))
    refused(world.evm, "early", WATCHER, challenges.close_epoch_demand(C))
    for moment in (by - 1, by):
        world.evm.now = moment
        refused(world.evm, "early", BOSS.address, challenges.halt(C))
    world.evm.travel(1)
    saved = world.fork()
    post(saved, 2, credits)
    refused(saved.evm, "covered", BOSS.address, challenges.halt(C))
    saved.evm.travel(WINDOW)
    send(saved, challenges.close_epoch_demand(C))
    assert credit_of(saved, C) == FEE
    refused(saved.evm, "phase", BOSS.address, challenges.close_epoch_demand(C))
    money(saved)
    assert Halted(C, 1) in send(world, challenges.halt(C), BOSS.address).events
    assert bond_of(world) == 0
    assert (credit_of(world, WATCHER), credit_of(world, BOSS.address)) == (FEE, FEE)
    assert world.evm.ask(challenges.pot(C)) == (DEVNET.coordinator_bond - FEE) // 2
    refused(world.evm, "halted", WATCHER, challenges.demand_epoch(C, statement))
    refused(world.evm, "phase", WATCHER, challenges.halt(C))
    refused(world.evm, "halted", C, challenges.revoke(1))
    money(world)


@pytest.mark.rule("6.47")
def test_an_epoch_posted_for_a_demand_and_revoked_saves_nobody() -> None:
    world, credits = posted(400)
    challenges = world.contracts.challenges
    send(world, challenges.demand_epoch(C, world.statement(ROBBED, 500, epoch=2)))
    world.evm.travel(AFTER)
    post(world, 2, credits)
    send(world, challenges.revoke(2), C)
    world.evm.travel(1)
    send(world, challenges.halt(C))
    assert newest_valid(world).number == 1


@pytest.mark.rule("6.29", "6.48")
def test_a_halted_coordinator_posts_nothing_and_its_last_root_pays() -> None:
    world, credits = halted()
    refused(world.evm, "bond", POSTER.address, poster_call(world, 2, credits))
    allocate = world.contracts.escrow.allocate(C, Amount(1))
    send(world, world.contracts.escrow.deposit(Amount(10)), WATCHER)
    refused(world.evm, "halted", WATCHER, allocate)
    claim(world, 1, credits, ROBBED)
    assert world.balance(payout(0)) == 250_000
    call = world.contracts.epochs.claim(C, 1, *prove(credits, ROBBED))
    world.evm.travel(HELD - 1)
    refused(world.evm, "amount", BOSS.address, call)
    world.evm.travel(1)
    assert send(world, call).events == (Claimed(C, ROBBED, payout(0), Amount(250_000), 1),)
    refused(world.evm, "amount", BOSS.address, call)
    claim(world, 1, credits, OWNERS[1])  # both parts at once
    assert world.balance(payout(1)) == 500_000
    money(world)


@pytest.mark.rule("6.48")
def test_held_credits_beyond_the_vouchers_are_paid_in_proportion() -> None:
    world = peopled()
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [
        Leaf(index + i, OWNERS[i], Amount(100), Amount(held), bytes(32))
        for i, held in enumerate((300, 600))
    ]
    post(world, 1, credits, world.voucher(CLIENT, 500))
    send(world, world.contracts.challenges.demand_epoch(C, world.statement(ROBBED, 500, epoch=2)))
    world.evm.travel(AFTER + 1)
    send(world, world.contracts.challenges.halt(C))
    world.evm.travel(HELD)
    claim(world, 1, credits, OWNERS[1])
    claim(world, 1, credits, OWNERS[0])
    assert (world.balance(payout(0)), world.balance(payout(1))) == (200, 300)
    assert world.evm.ask(world.contracts.epochs.rest_of(C, Amount(500))) == 0
    refused(world.evm, "amount", CLIENTS[0], world.contracts.escrow.take_rest(C))
    money(world)


@pytest.mark.rule("6.49")
def test_clients_of_a_halted_coordinator_take_back_what_is_theirs_once() -> None:
    world, credits = halted()
    escrow, evm = world.contracts.escrow, world.evm
    refused(evm, "early", CLIENTS[0], escrow.release_halted(key("nobody").address))
    evm.travel(SETTLE - 1)
    refused(evm, "early", CLIENTS[0], escrow.release_halted(C))
    refused(evm, "early", CLIENTS[0], escrow.take_rest(C))
    evm.travel(1)
    for number, charged in enumerate((1_500_000, 500_000, 0)):
        send(world, escrow.release_halted(C), CLIENTS[number])
        assert evm.ask(escrow.free_of(CLIENTS[number])) == 50 * USD - charged
        refused(evm, "amount", CLIENTS[number], escrow.release_halted(C))
    # 2,000,000 charged, 500,000 final, 500,000 held: 1,000,000 is left
    for number, share in ((0, 750_000), (1, 250_000)):
        before = evm.ask(escrow.free_of(CLIENTS[number]))
        send(world, escrow.take_rest(C), CLIENTS[number])
        assert evm.ask(escrow.free_of(CLIENTS[number])) == before + share
        refused(evm, "amount", CLIENTS[number], escrow.take_rest(C))
    refused(evm, "amount", CLIENTS[2], escrow.take_rest(C))
    for owner in OWNERS[:2]:
        claim(world, 1, credits, owner)
    pool = evm.ask(escrow.pool(C))
    assert pool.paid == pool.charged == pool.allocated
    money(world)


@pytest.mark.rule("6.50")
def test_half_the_bond_is_shared_by_what_was_promised_beyond_the_last_epoch() -> None:
    world, credits = halted()
    challenges, evm = world.contracts.challenges, world.evm
    full = world.statement(ROBBED, 600_000, epoch=2)
    send(world, challenges.file(C, full))
    refused(evm, "stale", WATCHER, challenges.file(C, full))
    whole = world.statement(OWNERS[1], 250_000)
    send(world, challenges.file(C, whole))
    assert evm.ask(challenges.shortages(C)) == 850_000
    # What the last epoch credits is shown by anybody
    for owner in OWNERS[:2]:
        send(world, challenges.credit_filing(C, *prove(credits, owner)), BOSS.address)
    shown = challenges.credit_filing(C, *prove(credits, ROBBED))
    refused(evm, "stale", BOSS.address, shown)
    assert evm.ask(challenges.shortages(C)) == 350_000
    third = challenges.file(C, world.statement(OWNERS[2], 10**9, epoch=2))
    at = evm.ask(world.contracts.epochs.head(C)).halted_at
    evm.now = at + SETTLE
    late = world.fork()
    late.evm.travel(1)
    refused(late.evm, "late", WATCHER, third)
    send(world, third)
    evm.now = at + SETTLE + DEVNET.challenge_response
    refused(evm, "early", WATCHER, challenges.take_share(C, ROBBED))
    evm.travel(1)
    refused(evm, "amount", WATCHER, challenges.take_share(C, OWNERS[1]))
    pot, total = evm.ask(challenges.pot(C)), 10**9 + 350_000
    for number, shortage in ((0, 350_000), (2, 10**9)):
        send(world, challenges.take_share(C, OWNERS[number]))
        share = min(shortage, pot * shortage // total)
        assert credit_of(world, payout(number)) == share
        refused(evm, "amount", WATCHER, challenges.take_share(C, OWNERS[number]))
        send(world, challenges.withdraw(payout(number)))


@pytest.mark.rule("6.49")
def test_an_allocation_that_is_as_large_as_can_be_leaves_room_for_others() -> None:
    """One allocation filled the coordinator's word, and nobody else could allocate."""
    world = peopled()
    token, escrow = world.contracts.token, world.contracts.escrow
    whale, most = key("whale").address, 2**60 - 1
    send(world, token.mint(whale, Amount(2 * most)), whale)
    send(world, token.approve(escrow.address), whale)
    for _ in range(2):
        send(world, escrow.deposit(Amount(most)), whale)
    send(world, escrow.allocate(C, Amount(most)), whale)
    refused(world.evm, "amount", whale, escrow.allocate(C, Amount(1)))  # its own is full
    before = world.evm.ask(escrow.pool(C)).allocated
    world.client(7)
    assert world.evm.ask(escrow.pool(C)).allocated == before + 50 * USD
    credits = leaves(world, 400)
    post(world, 1, credits, world.voucher(CLIENT, USD), world.voucher(key("client7"), USD))
    world.evm.travel(WINDOW)
    claim(world, 1, credits, ROBBED)


@pytest.mark.rule("6.49")
def test_a_deposit_is_promised_once() -> None:
    world = peopled()
    escrow, other = world.contracts.escrow, key("second coordinator")
    world.fund(other)
    keys = (key("second statements").address, key("second poster").address)
    send(world, world.contracts.stakes.register_coordinator(*keys), other.address)
    client = world.fund(key("client8")).address
    send(world, escrow.deposit(Amount(USD)), client)
    send(world, escrow.allocate(C, Amount(USD)), client)
    refused(world.evm, "amount", client, escrow.allocate(other.address, Amount(1)))
    # A release that a voucher overtakes gives nothing back
    send(world, escrow.request_release(C, Amount(USD)), client)
    world.evm.travel(DEVNET.allocation_release - 1)
    refused(world.evm, "early", client, escrow.finish_release(C))
    post(world, 1, leaves(world, 400), world.voucher(key("client8"), USD))
    send(world, world.contracts.challenges.revoke(1), C)  # void: its vouchers stay in the pool
    world.evm.travel(1)
    send(world, escrow.finish_release(C), client)
    assert world.evm.ask(escrow.free_of(client)) == 0
    post(world, 2, leaves(world, 400))
    world.evm.travel(WINDOW)
    claim(world, 2, leaves(world, 400), ROBBED)
    money(world)
