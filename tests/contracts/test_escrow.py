"""Tests deposits, allocations, releases and withdrawals."""

import pytest

from contracts.evm import refused
from contracts.market import BOSS, COORDINATOR, POSTER, Key, Market, key, market
from contracts.trial import money
from quorate_contracts.bindings.escrow import Allocation, Pool, Withdrawal
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, build
from quorate_protocol.units import ZERO_HASH, Address, Amount, UnixSeconds


def _allocated(world: Market, amount: int = 50 * USD) -> Key:
    return world.client(0, amount)


def _charge(world: Market, client: Key, cumulative: int) -> None:
    root = build([Leaf(1, COORDINATOR.address, Amount(cumulative), Amount(0), ZERO_HASH)])
    number = world.evm.ask(world.contracts.epochs.newest(COORDINATOR.address)) + 1
    world.evm.send(
        POSTER.address,
        world.contracts.epochs.post(
            COORDINATOR.address, number, root, [world.voucher(client, cumulative)]
        ),
    )


@pytest.mark.rule("4.27", "6.1")
def test_a_deposit_is_allocated_once() -> None:
    world = market()
    escrow, evm, client = world.contracts.escrow, world.evm, _allocated(world)
    assert evm.ask(escrow.free_of(client.address)) == 0
    assert evm.ask(escrow.allocation(client.address, COORDINATOR.address)) == Allocation(
        Amount(50 * USD), Amount(0), UnixSeconds(evm.now), Amount(0), UnixSeconds(0)
    )
    refused(evm, "amount", client.address, escrow.allocate(COORDINATOR.address, Amount(1)))
    evm.send(client.address, escrow.deposit(Amount(7)))
    refused(evm, "unknown", client.address, escrow.allocate(BOSS.address, Amount(7)))
    refused(evm, "amount", client.address, escrow.allocate(COORDINATOR.address, Amount(0)))
    refused(evm, "amount", client.address, escrow.deposit(Amount(0)))
    evm.travel(5)
    evm.send(client.address, escrow.allocate(COORDINATOR.address, Amount(7)))
    found = evm.ask(escrow.allocation(client.address, COORDINATOR.address))
    assert (found.allocated, found.since) == (50 * USD + 7, evm.now - 5)
    assert evm.ask(escrow.pool(COORDINATOR.address)) == Pool(
        Amount(50 * USD + 7), Amount(0), Amount(0)
    )
    money(world)


@pytest.mark.rule("4.27")
def test_a_release_waits_and_takes_no_more_than_vouchers_left() -> None:
    world = market()
    escrow, evm, client = world.contracts.escrow, world.evm, _allocated(world)
    refused(evm, "early", client.address, escrow.finish_release(COORDINATOR.address))
    evm.send(client.address, escrow.request_release(COORDINATOR.address, Amount(45 * USD)))
    evm.travel(DEVNET.allocation_release - 1)
    refused(evm, "early", client.address, escrow.finish_release(COORDINATOR.address))
    _charge(world, client, 10 * USD)
    evm.travel(1)
    evm.send(client.address, escrow.finish_release(COORDINATOR.address))
    assert evm.ask(escrow.free_of(client.address)) == 40 * USD
    left = evm.ask(escrow.allocation(client.address, COORDINATOR.address))
    assert (left.allocated, left.charged, left.releasing) == (10 * USD, 10 * USD, 0)
    refused(evm, "early", client.address, escrow.finish_release(COORDINATOR.address))
    money(world)


@pytest.mark.rule("4.30")
def test_newer_release_request_starts_its_delay_again() -> None:
    world = market()
    escrow, evm, client = world.contracts.escrow, world.evm, _allocated(world)
    evm.send(client.address, escrow.request_release(COORDINATOR.address, Amount(1)))
    evm.travel(DEVNET.allocation_release)
    evm.send(client.address, escrow.request_release(COORDINATOR.address, Amount(50 * USD)))
    refused(evm, "early", client.address, escrow.finish_release(COORDINATOR.address))


@pytest.mark.rule("9.1")
def test_a_withdrawal_waits_and_pays_what_is_free_then() -> None:
    world = market()
    escrow, evm, client = world.contracts.escrow, world.evm, world.fund(key("client0"))
    evm.send(client.address, escrow.deposit(Amount(100)))
    before = world.balance(client.address)
    evm.send(client.address, escrow.request_withdrawal(Amount(80)))
    assert evm.ask(escrow.withdrawal(client.address)) == Withdrawal(
        Amount(80), UnixSeconds(evm.now + DEVNET.withdrawal_delay)
    )
    evm.send(client.address, escrow.allocate(COORDINATOR.address, Amount(30)))
    evm.travel(DEVNET.withdrawal_delay - 1)
    refused(evm, "early", client.address, escrow.finish_withdrawal())
    evm.travel(1)
    evm.send(client.address, escrow.finish_withdrawal())
    assert world.balance(client.address) == before + 70
    refused(evm, "early", client.address, escrow.finish_withdrawal())
    money(world)


def test_only_epochs_charges_and_pays() -> None:
    world = market()
    escrow, client = world.contracts.escrow, _allocated(world)

    def packed(account: Address) -> int:
        """account(160) | 1 as an amount of 96 bits"""
        return int.from_bytes(account, "big") << 96 | 1

    refused(
        world.evm,
        "epochs",
        BOSS.address,
        escrow._call("charge", 200_000, COORDINATOR.address, [packed(client.address)]),
    )
    refused(
        world.evm,
        "epochs",
        COORDINATOR.address,
        escrow._call("pay", 200_000, COORDINATOR.address, [packed(BOSS.address)]),
    )


@pytest.mark.rule("4.28")
def test_vouchers_reach_to_the_allocation_and_no_further() -> None:
    world = market()
    client = _allocated(world, 5 * USD)
    _charge(world, client, 5 * USD)
    root = build([Leaf(1, COORDINATOR.address, Amount(0), Amount(0), ZERO_HASH)])
    call = world.contracts.epochs.post(
        COORDINATOR.address, 2, root, [world.voucher(client, 5 * USD + 1)]
    )
    refused(
        world.evm, "stale", POSTER.address, call
    )  # the sum of final credits fell, which the contract checks before any voucher
    root = build([Leaf(1, COORDINATOR.address, Amount(5 * USD), Amount(0), ZERO_HASH)])
    call = world.contracts.epochs.post(
        COORDINATOR.address, 2, root, [world.voucher(client, 5 * USD + 1)]
    )
    refused(world.evm, "allocation", POSTER.address, call)
    money(world)


@pytest.mark.rule("4.27")
def test_what_an_allocation_was_charged_takes_its_room() -> None:
    world, most = market(), 2**60 - 1
    escrow, evm, client = world.contracts.escrow, world.evm, _allocated(world)
    _charge(world, client, 10 * USD)
    evm.send(client.address, escrow.request_release(COORDINATOR.address, Amount(40 * USD)))
    evm.travel(DEVNET.allocation_release)
    evm.send(client.address, escrow.finish_release(COORDINATOR.address))
    evm.send(client.address, world.contracts.token.mint(client.address, Amount(most)))
    evm.send(client.address, escrow.deposit(Amount(most)))
    room = most - 10 * USD
    more = escrow.allocate(COORDINATOR.address, Amount(room + 1))
    refused(evm, "amount", client.address, more)
    evm.send(client.address, escrow.allocate(COORDINATOR.address, Amount(room)))


@pytest.mark.rule("4.27")
def test_an_allocation_that_is_as_large_as_can_be_leaves_room_for_others() -> None:
    world, most, whale = market(), 2**60 - 1, key("whale").address
    token, escrow, evm = world.contracts.token, world.contracts.escrow, world.evm
    evm.send(whale, token.mint(whale, Amount(2 * most)))
    evm.send(whale, token.approve(escrow.address))
    for _ in range(2):
        evm.send(whale, escrow.deposit(Amount(most)))
    evm.send(whale, escrow.allocate(COORDINATOR.address, Amount(most)))
    refused(evm, "amount", whale, escrow.allocate(COORDINATOR.address, Amount(1)))
    world.client(7)
    assert evm.ask(escrow.pool(COORDINATOR.address)).allocated == most + 50 * USD
