"""Tests claims: the contract refuses forged proofs and pays each leaf of a tree exactly once."""

import pytest

from contracts.epoch_leaves import CLIENT, OWNERS, C, claim, claim_call, leaves, part_of, post
from contracts.evm import refused
from contracts.market import BOSS, POSTER, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.events import Claimed
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, build, prove
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Amount, Hash32
from quorate_protocol.values import replace


@pytest.mark.rule("6.11")
@pytest.mark.parametrize("count", range(1, 9))
def test_trees_of_every_small_size_pay_everybody_exactly_once(count: int) -> None:
    world = peopled()
    credits = leaves(world, *range(1000, 1000 + count))
    post(world, 1, credits, world.voucher(CLIENT, 2 * USD))
    world.evm.travel(DEVNET.challenge_window)
    for account in [*OWNERS[:count], C]:
        claim(world, 1, credits, account)
    paid = world.evm.ask(world.contracts.escrow.pool(C)).paid
    assert paid == build(credits).final == sum(range(1000, 1000 + count)) + 3
    money(world)


@pytest.mark.rule("6.11")
def test_forged_leaves_proofs_and_positions_are_refused() -> None:
    world = peopled()
    credits = leaves(world, 100, 200, 300, 400)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    world.evm.travel(DEVNET.challenge_window)
    leaf, proof = prove(credits, OWNERS[2])
    forged = [
        replace(leaf, final=Amount(301)),
        replace(leaf, held=Amount(1)),
        replace(leaf, index=leaf.index + 1),
        replace(leaf, account=OWNERS[3]),
        replace(leaf, receipts_root=keccak256(b"other")),
    ]
    for other in forged:
        refused(world.evm, "proof", BOSS.address, claim_call(world, other, proof))
    for position in (proof.position ^ 1, proof.position + 8, proof.position ^ 4):
        refused(
            world.evm,
            "proof",
            BOSS.address,
            claim_call(world, leaf, Proof(position, proof.siblings)),
        )
    refused(
        world.evm,
        "proof",
        BOSS.address,
        claim_call(world, leaf, Proof(proof.position, proof.siblings[:-1])),
    )
    inflated = (
        replace(proof.siblings[0], final=Amount(proof.siblings[0].final + 1)),
        *proof.siblings[1:],
    )
    refused(
        world.evm, "proof", BOSS.address, claim_call(world, leaf, Proof(proof.position, inflated))
    )
    world.evm.send(BOSS.address, claim_call(world, leaf, proof))


@pytest.mark.rule("7.3")
def test_a_root_posted_with_other_sums_than_its_tree_pays_nobody() -> None:
    world = peopled()
    credits = leaves(world, 100, 200)
    root = build(credits)
    lower = Node(root.hash, Amount(root.final - 1), root.held)
    world.evm.send(
        POSTER.address, world.contracts.epochs.post(C, 1, lower, [world.voucher(CLIENT, USD)])
    )
    world.evm.travel(DEVNET.challenge_window)
    refused(
        world.evm,
        "sums",
        BOSS.address,
        world.contracts.epochs.claim(C, 1, *prove(credits, OWNERS[0])),
    )


@pytest.mark.rule("6.8")
def test_an_unknown_hash_claims_nothing() -> None:
    world = peopled()
    credits = leaves(world, 100)
    leaf, proof = prove(credits, OWNERS[0])
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 1, leaf, proof))
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 0, leaf, proof))
    node_as_leaf = Leaf(0, OWNERS[0], Amount(0), Amount(0), Hash32(bytes(32)))
    assert node_as_leaf.node().hash != build(credits).hash


@pytest.mark.parametrize("count", range(1, 9))
def test_all_of_a_tree_of_any_small_size_claim_together(count: int) -> None:
    world = peopled()
    credits = leaves(world, *range(1000, 1000 + count))
    post(world, 1, credits, world.voucher(CLIENT, 2 * USD))
    world.evm.travel(DEVNET.challenge_window)
    claim(world, 1, credits, OWNERS[0])
    (call,) = world.contracts.epochs.claim_all(C, 1, credits)
    mined = world.evm.send(BOSS.address, call)
    assert [event.account for event in mined.events if isinstance(event, Claimed)] == [
        C,
        *OWNERS[1:count],
    ]
    assert [world.balance(key(f"payout{i}").address) for i in range(count)] == list(
        range(1000, 1000 + count)
    )
    assert world.evm.ask(world.contracts.escrow.pool(C)).paid == build(credits).final
    refused(world.evm, "amount", BOSS.address, call)
    money(world)


@pytest.mark.rule("6.1", "6.2")
def test_a_larger_tree_is_claimed_in_parts_and_unclaimable_credits_stay() -> None:
    world = peopled()
    strangers = [key(f"stranger{i}").address for i in range(69)]
    fund = Leaf(0, ZERO_ADDRESS, Amount(77), Amount(0), ZERO_HASH)
    credits = [
        fund,
        *(
            Leaf(1000 + i, account, Amount(10 + i), Amount(i), ZERO_HASH)
            for i, account in enumerate(strangers)
        ),
    ]
    post(world, 1, credits, world.voucher(CLIENT, 2 * USD))
    world.evm.travel(DEVNET.challenge_window)
    refused(
        world.evm,
        "amount",
        BOSS.address,
        world.contracts.epochs.claim(C, 1, *prove(credits, ZERO_ADDRESS)),
    )
    calls = world.contracts.epochs.claim_all(C, 1, credits)
    assert len(calls) == 2
    for call in calls:
        world.evm.send(BOSS.address, call)
    assert [world.balance(account) for account in strangers] == [10 + i for i in range(69)]
    money(world)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_every_size_pay_exactly_their_own_leaves(count: int, size: int) -> None:
    world = peopled()
    credits = leaves(world, *range(1000, 1000 + count))
    post(world, 1, credits, world.voucher(CLIENT, 2 * USD))
    world.evm.travel(DEVNET.challenge_window)
    ordered = sorted(credits, key=lambda leaf: leaf.index)
    for start in reversed(range(0, len(ordered), size)):
        part = ordered[start : start + size]
        call = world.contracts.epochs.claim_part(C, 1, credits, start, size)
        if any(leaf.account != ZERO_ADDRESS and leaf.final for leaf in part):
            before = world.evm.ask(world.contracts.escrow.pool(C)).paid
            world.evm.send(BOSS.address, call)
            paid = world.evm.ask(world.contracts.escrow.pool(C)).paid - before
            assert paid == sum(leaf.final for leaf in part if leaf.account != ZERO_ADDRESS)
        refused(world.evm, "amount", BOSS.address, call)
    assert [world.balance(key(f"payout{number}").address) for number in range(count)] == list(
        range(1000, 1000 + count)
    )
    money(world)


def test_a_part_that_is_not_in_the_tree_claims_nothing() -> None:
    world = peopled()
    credits = leaves(world, 100, 200, 300, 400, 500)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    epochs, ordered = world.contracts.epochs, sorted(credits, key=lambda leaf: leaf.index)
    good = epochs.claim_all(C, 1, ordered)[0]
    refused(world.evm, "early", BOSS.address, good)
    world.evm.travel(DEVNET.challenge_window)
    forged = [
        replace(ordered[1], final=Amount(501)),
        replace(ordered[1], held=Amount(1)),
        replace(ordered[1], account=BOSS.address),
    ]
    wrong = [[ordered[0], leaf, *ordered[2:]] for leaf in forged] + [
        ordered[:-1],
        ordered[1:],
        ordered[::2],
        [],
    ]
    for part in wrong:
        refused(world.evm, "proof", BOSS.address, part_of(world, part, 0, ()))
    siblings = prove(ordered, ordered[0].account)[1].siblings[1:]
    for position in (1, 2, 4):
        refused(world.evm, "proof", BOSS.address, part_of(world, ordered[:2], position, siblings))
    refused(world.evm, "proof", BOSS.address, part_of(world, ordered[:2], 0, siblings[:-1]))
    world.evm.send(BOSS.address, part_of(world, ordered[:2], 0, siblings))
    world.evm.send(BOSS.address, good)
    money(world)
