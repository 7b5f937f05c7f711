"""Posting roots with vouchers, claiming against the newest final one."""

from collections.abc import Sequence

import pytest

from contracts.evm import Mined, refused
from contracts.market import BOSS, COORDINATOR, POSTER, STATEMENT, Market, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.epochs import Epoch, KnownSession, SignedVoucher
from quorate_contracts.bindings.events import Claimed, EpochPosted
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.rules.epoch_tree import Leaf, Node, Proof, build, prove
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Signature,
    UnixSeconds,
)
from quorate_protocol.values import replace

C = COORDINATOR.address
OWNERS = [key(f"owner{i}").address for i in range(9)]
CLIENT = key("client0")


def leaves(world: Market, *finals: int, held: int = 0) -> list[Leaf]:
    """Credits of the first providers; the fee leaf of the coordinator comes first in the tree."""
    index = world.evm.ask(world.contracts.stakes.index_of(OWNERS[0]))
    credits = [
        Leaf(index + i, OWNERS[i], Amount(final), Amount(held), keccak256(b"receipts %d" % i))
        for i, final in enumerate(finals)
    ]
    return [*reversed(credits), Leaf(1, C, Amount(3), Amount(0), ZERO_HASH)]


def post(world: Market, number: int, credits: Sequence[Leaf], *vouchers: SignedVoucher) -> Mined:
    return world.evm.send(
        POSTER.address, world.contracts.epochs.post(C, number, build(credits), vouchers)
    )


def claim(world: Market, number: int, credits: Sequence[Leaf], account: Address) -> Mined:
    return world.evm.send(
        BOSS.address, world.contracts.epochs.claim(C, number, *prove(credits, account))
    )


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


def test_posting_faster_than_the_ring_never_drops_the_newest_final_epoch() -> None:
    world = peopled()
    credits = leaves(world, 100)
    post(world, 1, credits, world.voucher(CLIENT, USD))
    world.evm.travel(DEVNET.challenge_window)
    for number in range(2, 33):
        post(world, number, credits)
    refused(
        world.evm, "early", POSTER.address, world.contracts.epochs.post(C, 33, build(credits), [])
    )
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 1
    claim(world, 1, credits, OWNERS[0])
    world.evm.travel(DEVNET.challenge_window)
    post(world, 33, credits)
    assert world.evm.ask(world.contracts.epochs.newest_final(C)).number == 32
    assert world.evm.ask(world.contracts.epochs.epoch(C, 1)).number == 0
    refused(
        world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 1, *prove(credits, C))
    )


def _claim_call(world: Market, leaf: Leaf, proof: Proof):  # type: ignore[no-untyped-def]
    return world.contracts.epochs.claim(C, 1, leaf, proof)


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
        refused(world.evm, "proof", BOSS.address, _claim_call(world, other, proof))
    for position in (proof.position ^ 1, proof.position + 8, proof.position ^ 4):
        refused(
            world.evm,
            "proof",
            BOSS.address,
            _claim_call(world, leaf, Proof(position, proof.siblings)),
        )
    refused(
        world.evm,
        "proof",
        BOSS.address,
        _claim_call(world, leaf, Proof(proof.position, proof.siblings[:-1])),
    )
    inflated = (
        replace(proof.siblings[0], final=Amount(proof.siblings[0].final + 1)),
        *proof.siblings[1:],
    )
    refused(
        world.evm, "proof", BOSS.address, _claim_call(world, leaf, Proof(proof.position, inflated))
    )
    world.evm.send(BOSS.address, _claim_call(world, leaf, proof))


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


@pytest.mark.rule("2.4", "3.7", "3.22", "6.9")
def test_vouchers_need_both_signatures_and_stay_inside_their_session() -> None:
    world = peopled()
    epochs, root = world.contracts.epochs, build(leaves(world, 0))

    def post_one(voucher: SignedVoucher):  # type: ignore[no-untyped-def]
        return epochs.post(C, 1, root, [voucher])

    good = world.voucher(CLIENT, USD)
    stranger = key("stranger")
    refused(
        world.evm,
        "session",
        POSTER.address,
        post_one(replace(good, session=world.session(CLIENT, signer=stranger))),
    )
    by_account = seal(world.domain, good.voucher.message, CLIENT.sign)
    refused(world.evm, "voucher", POSTER.address, post_one(replace(good, voucher=by_account)))
    refused(
        world.evm, "amount", POSTER.address, post_one(world.voucher(CLIENT, USD + 1, up_to=USD))
    )
    refused(
        world.evm,
        "expired",
        POSTER.address,
        post_one(world.voucher(CLIENT, USD, expires=world.evm.now - 1)),
    )
    world.fork().evm.send(
        POSTER.address, post_one(world.voucher(CLIENT, USD, expires=world.evm.now, up_to=USD))
    )
    changed = replace(
        good,
        voucher=replace(
            good.voucher, message=replace(good.voucher.message, cumulative=Amount(2 * USD))
        ),
    )
    refused(world.evm, "voucher", POSTER.address, post_one(changed))
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    sig = good.voucher.sig
    high = Signature(
        sig[:32]
        + (order - int.from_bytes(sig[32:64], "big")).to_bytes(32, "big")
        + bytes([55 - sig[64]])
    )
    refused(
        world.evm,
        "signature",
        POSTER.address,
        post_one(replace(good, voucher=replace(good.voucher, sig=high))),
    )
    garbage = Signature(sig[:64] + b"\x1d")
    refused(
        world.evm,
        "signature",
        POSTER.address,
        post_one(replace(good, voucher=replace(good.voucher, sig=garbage))),
    )
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


@pytest.mark.rule("6.8")
def test_an_unknown_hash_claims_nothing() -> None:
    world = peopled()
    credits = leaves(world, 100)
    leaf, proof = prove(credits, OWNERS[0])
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 1, leaf, proof))
    refused(world.evm, "early", BOSS.address, world.contracts.epochs.claim(C, 0, leaf, proof))
    node_as_leaf = Leaf(0, OWNERS[0], Amount(0), Amount(0), Hash32(bytes(32)))
    assert node_as_leaf.node().hash != build(credits).hash


def test_a_session_is_proven_once_and_remembered_until_another_comes() -> None:
    world = peopled()
    epochs, credits, expires = world.contracts.epochs, leaves(world, 0), world.evm.now + 100
    root, later = build(credits), world.voucher(CLIENT, 2 * USD, up_to=2 * USD, expires=expires)

    def known() -> dict[Address, KnownSession]:
        return {CLIENT.address: world.evm.ask(epochs.session(C, CLIENT.address))}

    assert known()[CLIENT.address] == KnownSession(ZERO_ADDRESS, Amount(0), UnixSeconds(0))
    believed = {
        CLIENT.address: KnownSession(
            later.session.message.session_key, Amount(2 * USD), UnixSeconds(expires)
        )
    }
    refused(world.evm, "session", POSTER.address, epochs.post(C, 1, root, [later], believed))
    post(world, 1, credits, world.voucher(CLIENT, USD, up_to=2 * USD, expires=expires))
    assert (
        known() == believed
        and later.session.sig not in epochs.post(C, 2, root, [later], known()).data
    )
    other = key("client1")
    stolen = {other.address: known()[CLIENT.address]}
    theirs = seal(
        world.domain,
        replace(later.voucher.message, client=other.address),
        key("session of " + CLIENT.address.hex()).sign,
    )
    forged = replace(
        later,
        session=replace(
            later.session, message=replace(later.session.message, client=other.address)
        ),
        voucher=theirs,
    )
    refused(world.evm, "session", POSTER.address, epochs.post(C, 2, root, [forged], stolen))
    over = world.voucher(CLIENT, 2 * USD + 1, up_to=2 * USD, expires=expires)
    refused(world.evm, "amount", POSTER.address, epochs.post(C, 2, root, [over], known()))
    by_account = replace(later, voucher=seal(world.domain, later.voucher.message, CLIENT.sign))
    refused(world.evm, "voucher", POSTER.address, epochs.post(C, 2, root, [by_account], known()))
    late = world.fork()
    late.evm.now = expires
    late.fork().evm.send(POSTER.address, epochs.post(C, 2, root, [later], known()))
    late.evm.travel(1)
    refused(late.evm, "expired", POSTER.address, epochs.post(C, 2, root, [later], known()))
    late.evm.send(
        POSTER.address, epochs.post(C, 2, root, [late.voucher(CLIENT, 2 * USD)], known())
    )  # a newer session goes with it
    world.evm.send(POSTER.address, epochs.post(C, 2, root, [later], known()))
    assert world.evm.ask(world.contracts.escrow.pool(C)).charged == 2 * USD
    money(world)


def test_a_new_session_key_takes_the_place_of_the_old_one() -> None:
    world = peopled()
    epochs, credits, expires = (
        world.contracts.epochs,
        leaves(world, 0),
        UnixSeconds(world.evm.now + 100),
    )
    old = world.voucher(CLIENT, USD, expires=expires)
    post(world, 1, credits, old)
    new_key = key("new session key")
    session = seal(
        world.domain, replace(old.session.message, session_key=new_key.address), CLIENT.sign
    )
    body = replace(old.voucher.message, cumulative=Amount(2 * USD))
    known = {CLIENT.address: world.evm.ask(epochs.session(C, CLIENT.address))}
    call = epochs.post(
        C,
        2,
        build(credits),
        [SignedVoucher(session, seal(world.domain, body, new_key.sign))],
        known,
    )
    assert session.sig[:64] in call.data, "another session is sent, whatever is known"
    world.evm.send(POSTER.address, call)
    refused(
        world.evm,
        "voucher",
        POSTER.address,
        epochs.post(C, 3, build(credits), [world.voucher(CLIENT, 2 * USD, expires=expires)], known),
    )
    assert world.evm.ask(epochs.session(C, CLIENT.address)).session_key == new_key.address


def test_sessions_without_practical_bounds_are_remembered_as_far_as_the_bits_go() -> None:
    world = peopled()
    epochs, credits = world.contracts.epochs, leaves(world, 0)
    free = world.voucher(CLIENT, USD, up_to=2**128 - 1, expires=2**64 - 1)
    post(world, 1, credits, free)
    known = world.evm.ask(epochs.session(C, CLIENT.address))
    assert (known.up_to, known.expires) == (2**60 - 1, 2**36 - 1) and known.is_of(
        free.session.message
    )
    world.evm.send(
        POSTER.address, epochs.post(C, 2, build(credits), [free], {CLIENT.address: known})
    )


def test_a_session_for_one_coordinator_is_unknown_to_another() -> None:
    world = peopled()
    post(world, 1, leaves(world, 0), world.voucher(CLIENT, USD))
    assert (
        world.evm.ask(world.contracts.epochs.session(C, CLIENT.address)).session_key != ZERO_ADDRESS
    )
    assert (
        world.evm.ask(world.contracts.epochs.session(BOSS.address, CLIENT.address)).session_key
        == ZERO_ADDRESS
    )


def test_one_client_has_one_voucher_in_a_post() -> None:
    world = peopled()
    with pytest.raises(AssertionError, match="one voucher"):
        world.contracts.epochs.post(
            C, 1, build([]), [world.voucher(CLIENT, USD), world.voucher(CLIENT, 2 * USD)]
        )


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
def test_a_larger_tree_is_claimed_in_parts_and_what_is_nobodys_stays() -> None:
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
def test_parts_of_every_size_pay_theirs_and_nobody_elses(count: int, size: int) -> None:
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


def test_parts_that_are_not_of_the_tree_claim_nothing() -> None:
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
        refused(world.evm, "proof", BOSS.address, _part(world, part, 0, ()))
    siblings = prove(ordered, ordered[0].account)[1].siblings[1:]
    for position in (1, 2, 4):
        refused(world.evm, "proof", BOSS.address, _part(world, ordered[:2], position, siblings))
    refused(world.evm, "proof", BOSS.address, _part(world, ordered[:2], 0, siblings[:-1]))
    world.evm.send(BOSS.address, _part(world, ordered[:2], 0, siblings))
    world.evm.send(BOSS.address, good)
    money(world)


def _part(world: Market, part: Sequence[Leaf], position: int, siblings: Sequence[Node]) -> Call:
    listed = [
        (leaf.index, leaf.account, leaf.final << 128 | leaf.held, leaf.receipts_root)
        for leaf in part
    ]
    proof = [(node.hash, node.final << 128 | node.held) for node in siblings]
    return world.contracts.epochs._call("claim_many", 1_000_000, C, 1, listed, position, proof)
