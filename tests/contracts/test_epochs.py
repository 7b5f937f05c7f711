"""Posting roots with vouchers, claiming against the newest final one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from contracts.evm import Mined, refused
from contracts.market import BOSS, COORDINATOR, POSTER, STATEMENT, Market, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.epochs import Epoch, SignedVoucher
from quorate_contracts.bindings.events import Claimed, EpochPosted
from quorate_protocol.eip712 import Domain
from quorate_protocol.envelope import seal
from quorate_protocol.epoch import Leaf, Node, Proof, build, prove
from quorate_protocol.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Signature, UnixSeconds

C = COORDINATOR.address
OWNERS = [key(f"owner{i}").address for i in range(9)]
CLIENT = key("client0")


def leaves(world: Market, *finals: int, held: int = 0) -> list[Leaf]:
    """Credits of the first providers; the fee leaf of the coordinator comes first in the tree."""
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [Leaf(index + i, OWNERS[i], Amount(final), Amount(held), keccak256(b"receipts %d" % i)) for i, final in enumerate(finals)]
    return [*reversed(credits), Leaf(1, C, Amount(3), Amount(0), ZERO_HASH)]


def post(world: Market, number: int, credits: Sequence[Leaf], *vouchers: SignedVoucher) -> Mined:
    return world.evm.send(POSTER.address, world.contracts.epochs.post(C, number, build(credits), vouchers))


def claim(world: Market, number: int, credits: Sequence[Leaf], account: Address) -> Mined:
    return world.evm.send(BOSS.address, world.contracts.epochs.claim(C, number, *prove(credits, account)))


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


def test_claims_are_cumulative_and_only_against_the_newest_final_epoch() -> None:
    world = peopled()
    first, second = leaves(world, 100, 200), leaves(world, 150, 260)
    post(world, 1, first, world.voucher(CLIENT, USD))
    world.evm.travel(5)
    post(world, 2, second)
    world.evm.travel(5)
    claim(world, 1, first, OWNERS[0])
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 2, *prove(second, OWNERS[0])))
    world.evm.travel(5)
    refused(world.evm, "stale", BOSS.address, world.contracts.epochs.claim(C, 1, *prove(first, OWNERS[1])))
    claim(world, 2, second, OWNERS[0])
    claim(world, 2, second, OWNERS[1])
    assert (world.balance(key("payout0").address), world.balance(key("payout1").address)) == (150, 260)
    assert world.evm.ask(world.contracts.epochs.claimed(C, OWNERS[0])) == 150
    money(world)


def test_final_credits_need_vouchers_and_all_credits_need_allocations() -> None:
    world = peopled()  # three clients, 50 USD allocated each
    exactly = leaves(world, USD - 3)
    over = leaves(world, USD - 2)
    post_over = world.contracts.epochs.post(C, 1, build(over), [world.voucher(CLIENT, USD)])
    refused(world.evm, "pool", POSTER.address, post_over)
    held = leaves(world, USD - 3, held=149 * USD + 1)
    refused(world.evm, "allocation", POSTER.address, world.contracts.epochs.post(C, 1, build(held), [world.voucher(CLIENT, USD)]))
    post(world.fork(), 1, leaves(world, USD - 3, held=149 * USD), world.voucher(CLIENT, USD))
    post(world, 1, exactly, world.voucher(CLIENT, USD))
    refused(world.evm, "stale", POSTER.address, world.contracts.epochs.post(C, 2, build(leaves(world, USD - 4)), []))
    money(world)


def test_epochs_come_in_order_from_the_posting_key_only() -> None:
    world = peopled()
    root, epochs = build(leaves(world, 0)), world.contracts.epochs
    voucher = [world.voucher(CLIENT, USD)]
    for number in (0, 2):
        refused(world.evm, "epoch", POSTER.address, epochs.post(C, number, root, voucher))
    for stranger in (C, STATEMENT.address, BOSS.address):
        refused(world.evm, "signer", stranger, epochs.post(C, 1, root, voucher))
    refused(world.evm, "amount", POSTER.address, epochs.post(C, 1, Node(ZERO_HASH, Amount(0), Amount(0)), voucher))
    refused(world.evm, "signer", POSTER.address, epochs.post(BOSS.address, 1, root, []))
    post(world, 1, leaves(world, 0), *voucher)
    refused(world.evm, "epoch", POSTER.address, epochs.post(C, 1, root, voucher))


def test_posting_faster_than_the_ring_never_drops_the_newest_final_epoch() -> None:
    world = peopled()
    credits = leaves(world, 100)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    world.evm.travel(DEVNET.challenge_window)
    for number in range(2, 33):
        post(world, number, credits)
    refused(world.evm, "early", POSTER.address, world.contracts.epochs.post(C, 33, build(credits), []))
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 1
    claim(world, 1, credits, OWNERS[0])
    world.evm.travel(DEVNET.challenge_window)
    post(world, 33, credits)
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 32
    assert world.evm.ask(world.contracts.epochs.epoch(C, 1)).number == 0
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 1, *prove(credits, C)))


def _claim_call(world: Market, leaf: Leaf, proof: Proof):  # type: ignore[no-untyped-def]
    return world.contracts.epochs.claim(C, 1, leaf, proof)


def test_forged_leaves_proofs_and_positions_are_refused() -> None:
    world = peopled()
    credits = leaves(world, 100, 200, 300, 400)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    world.evm.travel(DEVNET.challenge_window)
    leaf, proof = prove(credits, OWNERS[2])
    forged = [
        replace(leaf, final=Amount(301)), replace(leaf, held=Amount(1)), replace(leaf, index=leaf.index + 1),
        replace(leaf, account=OWNERS[3]), replace(leaf, receipts_root=keccak256(b"other")),
    ]  # fmt: skip
    for other in forged:
        refused(world.evm, "proof", BOSS.address, _claim_call(world, other, proof))
    for position in (proof.position ^ 1, proof.position + 8, proof.position ^ 4):
        refused(world.evm, "proof", BOSS.address, _claim_call(world, leaf, Proof(position, proof.siblings)))
    refused(world.evm, "proof", BOSS.address, _claim_call(world, leaf, Proof(proof.position, proof.siblings[:-1])))
    inflated = (replace(proof.siblings[0], final=Amount(proof.siblings[0].final + 1)), *proof.siblings[1:])
    refused(world.evm, "proof", BOSS.address, _claim_call(world, leaf, Proof(proof.position, inflated)))
    world.evm.send(BOSS.address, _claim_call(world, leaf, proof))


def test_a_root_posted_with_other_sums_than_its_tree_pays_nobody() -> None:
    world = peopled()
    credits = leaves(world, 100, 200)
    root = build(credits)
    lower = Node(root.hash, Amount(root.final - 1), root.held)
    world.evm.send(POSTER.address, world.contracts.epochs.post(C, 1, lower, [world.voucher(CLIENT, USD)]))
    world.evm.travel(DEVNET.challenge_window)
    refused(world.evm, "sums", BOSS.address, world.contracts.epochs.claim(C, 1, *prove(credits, OWNERS[0])))


def test_vouchers_need_both_signatures_and_stay_inside_their_session() -> None:
    world = peopled()
    epochs, root = world.contracts.epochs, build(leaves(world, 0))

    def post_one(voucher: SignedVoucher):  # type: ignore[no-untyped-def]
        return epochs.post(C, 1, root, [voucher])

    good = world.voucher(CLIENT, USD)
    stranger = key("stranger")
    refused(world.evm, "session", POSTER.address, post_one(replace(good, session=world.session(CLIENT, signer=stranger))))
    by_account = seal(world.domain, good.voucher.message, CLIENT.sign)
    refused(world.evm, "voucher", POSTER.address, post_one(replace(good, voucher=by_account)))
    refused(world.evm, "amount", POSTER.address, post_one(world.voucher(CLIENT, USD + 1, up_to=USD)))
    refused(world.evm, "expired", POSTER.address, post_one(world.voucher(CLIENT, USD, expires=world.evm.now - 1)))
    world.fork().evm.send(POSTER.address, post_one(world.voucher(CLIENT, USD, expires=world.evm.now, up_to=USD)))
    changed = replace(good, voucher=replace(good.voucher, message=replace(good.voucher.message, cumulative=Amount(2 * USD))))
    refused(world.evm, "voucher", POSTER.address, post_one(changed))
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    sig = good.voucher.sig
    high = Signature(sig[:32] + (order - int.from_bytes(sig[32:64], "big")).to_bytes(32, "big") + bytes([55 - sig[64]]))
    refused(world.evm, "signature", POSTER.address, post_one(replace(good, voucher=replace(good.voucher, sig=high))))
    garbage = Signature(sig[:64] + b"\x1d")
    refused(world.evm, "signature", POSTER.address, post_one(replace(good, voucher=replace(good.voucher, sig=garbage))))
    foreign = Domain(world.domain.chain_id + 1, world.domain.verifying_contract)
    elsewhere = seal(foreign, good.voucher.message, key("session of " + CLIENT.address.hex()).sign)
    refused(world.evm, "voucher", POSTER.address, post_one(replace(good, voucher=elsewhere)))
    post(world, 1, leaves(world, 0), good)
    lower = world.voucher(CLIENT, USD - 1)
    refused(world.evm, "stale", POSTER.address, epochs.post(C, 2, root, [lower]))
    post(world, 2, leaves(world, 0), good)  # the same voucher again charges nothing
    assert world.evm.ask(world.contracts.escrow.pool(C)).charged == USD
    money(world)


def test_a_voucher_for_another_coordinator_is_not_built() -> None:
    world = peopled()
    with pytest.raises(AssertionError, match="differ"):
        world.contracts.epochs.post(BOSS.address, 1, build([]), [world.voucher(CLIENT, USD)])


def test_an_unknown_hash_claims_nothing() -> None:
    world = peopled()
    credits = leaves(world, 100)
    leaf, proof = prove(credits, OWNERS[0])
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 1, leaf, proof))
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 0, leaf, proof))
    node_as_leaf = Leaf(0, OWNERS[0], Amount(0), Amount(0), Hash32(bytes(32)))
    assert node_as_leaf.node().hash != build(credits).hash
