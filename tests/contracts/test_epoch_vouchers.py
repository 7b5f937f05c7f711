"""Tests vouchers and sessions in a posted epoch: signatures, bounds, and the session that the
chain remembers.
"""

import pytest

from contracts.epoch_leaves import CLIENT, C, leaves, post
from contracts.evm import refused
from contracts.market import BOSS, POSTER, key, peopled
from contracts.trial import money
from quorate_contracts.bindings.epochs import KnownSession, SignedVoucher
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.limits import USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.rules.epoch_tree import build
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Signature, UnixSeconds
from quorate_protocol.values import replace


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


def test_the_binding_refuses_a_voucher_for_another_coordinator() -> None:
    world = peopled()
    with pytest.raises(AssertionError, match="differ"):
        world.contracts.epochs.post(BOSS.address, 1, build([]), [world.voucher(CLIENT, USD)])


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
        replace(later.voucher.message, payer=other.address),
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
    )  # the voucher carries a newer session
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


def test_very_large_session_terms_are_remembered_up_to_their_bit_width() -> None:
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
