"""Tests epochs: who posts them, in which order, and when accounts can claim their credits."""

import pytest

from contracts.epoch_leaves import CLIENT, OWNERS, C, claim, leaves, post
from contracts.evm import refused
from contracts.market import BOSS, POSTER, STATEMENT, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.bindings.events import Claimed, EpochPosted
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Node, build, prove
from quorate_protocol.units import ZERO_HASH, Amount, UnixSeconds

RING = 256


@pytest.mark.rule("2.1", "6.18")
def test_credits_are_claimed_to_the_payout_address_after_the_window() -> None:
    world = peopled()
    credits = leaves(world, 100, 200, 300, 400, 500)
    event = post(world, 1, credits, world.voucher(CLIENT, 2 * USD)).events[0]
    root = build(credits)
    assert event == EpochPosted(C, 1, root.hash, Amount(1503), Amount(0), Amount(2 * USD))
    call = world.contracts.epochs.claim(C, 1, *prove(credits, OWNERS[1]))
    world.evm.travel(DEVNET.challenge_window - 1)
    refused(world.evm, "early", BOSS.address, call)
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 0
    world.evm.travel(1)
    assert world.evm.ask(world.contracts.epochs.newest_final(C)) == Epoch(
        root.hash, 1, UnixSeconds(world.evm.now - 10), Amount(1503), Amount(0)
    )
    mined = world.evm.send(BOSS.address, call)
    payout = key("payout1").address
    assert mined.events == (Claimed(C, OWNERS[1], payout, Amount(200), 1),)
    assert world.balance(payout) == 200
    refused(world.evm, "amount", BOSS.address, call)
    claim(world, 1, credits, C)
    assert world.balance(C) == 10**12 - DEVNET.coordinator_bond + 3
    money(world)


@pytest.mark.rule("6.13")
def test_claims_are_cumulative_and_only_against_the_newest_final_epoch() -> None:
    world = peopled()
    first, second = leaves(world, 100, 200), leaves(world, 150, 260)
    post(world, 1, first, world.voucher(CLIENT, USD))
    world.evm.travel(5)
    post(world, 2, second)
    world.evm.travel(5)
    claim(world, 1, first, OWNERS[0])
    refused(
        world.evm,
        "early",
        BOSS.address,
        world.contracts.epochs.claim(C, 2, *prove(second, OWNERS[0])),
    )
    world.evm.travel(5)
    refused(
        world.evm,
        "stale",
        BOSS.address,
        world.contracts.epochs.claim(C, 1, *prove(first, OWNERS[1])),
    )
    claim(world, 2, second, OWNERS[0])
    claim(world, 2, second, OWNERS[1])
    assert (world.balance(key("payout0").address), world.balance(key("payout1").address)) == (
        150,
        260,
    )
    assert world.evm.ask(world.contracts.epochs.claimed(C, OWNERS[0])) == 150
    money(world)


@pytest.mark.rule("6.5", "6.12", "7.3")
def test_final_credits_need_vouchers_and_all_credits_need_allocations() -> None:
    world = peopled()  # three clients, 50 USD allocated each
    exactly = leaves(world, USD - 3)
    over = leaves(world, USD - 2)
    post_over = world.contracts.epochs.post(C, 1, build(over), [world.voucher(CLIENT, USD)])
    refused(world.evm, "pool", POSTER.address, post_over)
    held = leaves(world, USD - 3, held=149 * USD + 1)
    refused(
        world.evm,
        "allocation",
        POSTER.address,
        world.contracts.epochs.post(C, 1, build(held), [world.voucher(CLIENT, USD)]),
    )
    post(world.fork(), 1, leaves(world, USD - 3, held=149 * USD), world.voucher(CLIENT, USD))
    post(world, 1, exactly, world.voucher(CLIENT, USD))
    refused(
        world.evm,
        "stale",
        POSTER.address,
        world.contracts.epochs.post(C, 2, build(leaves(world, USD - 4)), []),
    )
    money(world)


@pytest.mark.rule("2.5", "2.10")
def test_epochs_come_in_order_from_the_posting_key_only() -> None:
    world = peopled()
    root, epochs = build(leaves(world, 0)), world.contracts.epochs
    voucher = [world.voucher(CLIENT, USD)]
    for number in (0, 2):
        refused(world.evm, "epoch", POSTER.address, epochs.post(C, number, root, voucher))
    for stranger in (C, STATEMENT.address, BOSS.address):
        refused(world.evm, "signer", stranger, epochs.post(C, 1, root, voucher))
    refused(
        world.evm,
        "amount",
        POSTER.address,
        epochs.post(C, 1, Node(ZERO_HASH, Amount(0), Amount(0)), voucher),
    )
    refused(world.evm, "signer", POSTER.address, epochs.post(BOSS.address, 1, root, []))
    post(world, 1, leaves(world, 0), *voucher)
    refused(world.evm, "epoch", POSTER.address, epochs.post(C, 1, root, voucher))


@pytest.mark.rule("6.45")
def test_fast_posting_never_overwrites_the_newest_final_epoch_in_the_ring() -> None:
    world = peopled()
    epochs, credits = world.contracts.epochs, leaves(world, 100)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    world.evm.travel(DEVNET.challenge_window)
    for number in range(2, RING + 1):
        post(world, number, credits)
    assert world.evm.ask(epochs.newest_final(C)).number == 1
    claim(world, 1, credits, OWNERS[0])
    call = epochs.post(C, RING + 1, build(credits), [])
    refused(world.evm, "early", POSTER.address, call)
    world.evm.travel(DEVNET.challenge_window)
    world.evm.send(POSTER.address, call)
    assert world.evm.ask(epochs.newest_final(C)).number == RING
    assert world.evm.ask(epochs.epoch(C, 1)).number == 0
    for number, reason in ((1, "early"), (2, "stale"), (RING + 1, "early")):
        refused(world.evm, reason, BOSS.address, epochs.claim(C, number, *prove(credits, C)))
    claim(world, RING, credits, C)


@pytest.mark.rule("6.18")
def test_an_epoch_that_takes_credit_from_an_account_is_final_too() -> None:
    """Nobody can end it: its coordinator's word counts, or that of a thief of the posting key."""
    world = peopled()
    post(world, 1, leaves(world, 400, 100), world.voucher(CLIENT, USD))
    shifted = leaves(world, 100, 400)
    post(world, 2, shifted)
    world.evm.travel(DEVNET.challenge_window)
    claim(world, 2, shifted, OWNERS[0])
    claim(world, 2, shifted, OWNERS[1])
    paid = [world.balance(key(f"payout{number}").address) for number in (0, 1)]
    assert paid == [100, 400], "the first was owed 400"
