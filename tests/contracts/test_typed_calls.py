"""Tests the typed calls of the money as programs send them, and that each call has its gas."""

import pytest

from contracts.evm import refused
from contracts.market import COORDINATOR, POSTER, STATEMENT, Key, Market, key, market
from quorate_contracts.account.relayed_requests import relayed_call
from quorate_contracts.artifact import CONTRACTS, artifact
from quorate_contracts.encodings import DRAWS_MAX, pairs, read_pair, session, voucher
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.generated.escrow import Locked, PaidMany, Payroll, Receipts, Redeemed
from quorate_contracts.generated.gas_bounds import BOUNDS, gas_of
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import USD
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.requests import CloseTabRequest, LockRequest, WithdrawRequest
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Amount, Hash32, Nonce
from quorate_protocol.units import UnixSeconds as Seconds

C, ROOT = COORDINATOR.address, Hash32(bytes(range(1, 33)))


def vouched(world: Market, payer: Key, payee: Address, amount: int, by: Key) -> Envelope[Voucher]:
    body = Voucher(payer.address, payee, Amount(amount))
    return seal(world.domain, body, by.sign)


def capital(world: Market) -> None:
    """The coordinator has a balance, and its posting key may move it."""
    escrow = world.contracts.escrow
    world.evm.send(C, escrow.deposit(Amount(100 * USD), ZERO_ADDRESS))
    world.evm.send(C, escrow.set_limits(50 * USD, 50 * USD))


@pytest.mark.rule("6.65", "6.66", "6.68", "6.70")
def test_money_goes_from_a_client_by_vouchers_and_payroll_to_a_payout_address() -> None:
    world = market()
    capital(world)
    evm, escrow = world.evm, world.contracts.escrow
    owner, client, own = world.provider(0), world.client(0), key("session")
    until = Seconds(evm.now + 1000)
    named = Session(client.address, own.address, C, Amount(40 * USD), until)
    shown = [session(seal(world.domain, named, client.sign))]
    signed = [voucher(vouched(world, client, C, 3 * USD, own))]
    events = evm.send(POSTER.address, escrow.redeem(C, ROOT, shown, signed)).events
    assert Redeemed(client.address, C, Amount(3 * USD)) in events and Receipts(C, ROOT) in events
    locks = pairs([(owner, Amount(USD))])
    assert evm.send(POSTER.address, escrow.lock_many(C, locks)).events == (
        Locked(C, owner, Amount(USD)),
    )
    pays = pairs([(owner, Amount(2 * USD))])
    (paid,) = evm.send(POSTER.address, escrow.payroll(C, ROOT, pays)).events
    assert paid == Payroll(C, ROOT, Amount(2 * USD))
    by_voucher = [voucher(vouched(world, COORDINATOR, owner, 5 * USD // 2, STATEMENT))]
    evm.send(key("anybody").address, escrow.redeem(owner, ZERO_HASH, [], by_voucher))
    tab = evm.ask(escrow.tab(C, owner))
    assert (tab.locked, tab.paid) == (3 * USD, 5 * USD // 2)
    evm.send(key("anybody").address, escrow.draw(owner, [C]))
    assert world.balance(key("payout0").address) == 5 * USD // 2
    assert evm.ask(escrow.balance_of(C)) == 100 * USD


def test_words_of_events_are_read_as_they_were_written() -> None:
    world = market()
    capital(world)
    listed = [(key("a").address, Amount(1)), (key("b").address, Amount(2))]
    (event,) = world.evm.send(C, world.contracts.escrow.pay(pairs(listed))).events
    assert isinstance(event, PaidMany) and [read_pair(word) for word in event.pays] == listed


@pytest.mark.rule("2.8", "2.9")
def test_an_account_without_coins_locks_closes_and_withdraws_by_a_relayer() -> None:
    world = market()
    capital(world)
    evm, escrow, relayer = world.evm, world.contracts.escrow, key("relayer").address
    until, fee, payee = Seconds(evm.now + 60), Amount(USD), key("owner0").address
    requests = (
        LockRequest(C, payee, Amount(5 * USD), Nonce(0), until, fee),
        CloseTabRequest(C, payee, Nonce(1), until, fee),
        WithdrawRequest(C, Amount(10 * USD), Nonce(2), until, fee),
    )
    before = world.balance(C)
    for request in requests:
        call = relayed_call(
            world.contracts, request, fee, COORDINATOR.sign(digest(world.domain, request))
        )
        evm.send(relayer, call)
        refused(evm, "nonce", relayer, call)
    assert evm.ask(escrow.balance_of(relayer)) == 3 * USD
    assert world.balance(C) == before + 9 * USD, "the fee comes out of what is withdrawn"
    assert evm.ask(escrow.tab(C, payee)).closes_at > 0


def test_every_call_has_its_gas_and_a_longer_list_gets_more() -> None:
    named = {
        f"{name}.{function['name']}"
        for name in CONTRACTS
        for function in artifact(name).abi
        if function["type"] == "function" and function["stateMutability"] == "nonpayable"
    }
    assert named == set(BOUNDS)
    base, each = BOUNDS["Stakes.open_slots"]
    assert gas_of("Stakes", "open_slots", [bytes(32), 16]) == base + 16 * each
    base, shown, redeemed = BOUNDS["Escrow.redeem"]
    lists = [bytes(20), bytes(32), [1], [1, 2]]
    assert gas_of("Escrow", "redeem", lists) == base + shown + 2 * redeemed


def test_the_longest_lists_and_the_owner_of_the_most_classes_have_enough_gas() -> None:
    world = market()
    capital(world)
    evm, escrow, stakes = world.evm, world.contracts.escrow, world.contracts.stakes
    fresh = [(key(f"payee{number}").address, Amount(number + 1)) for number in range(256)]
    calls: list[tuple[Address, Call]] = [
        (POSTER.address, escrow.payroll(C, ROOT, pairs(fresh))),
        (POSTER.address, escrow.lock_many(C, pairs(fresh))),
        (C, escrow.pay(pairs(fresh))),
        (C, escrow.draw_many(C, [payee for payee, _ in fresh[:DRAWS_MAX]])),
    ]
    owner = world.provider(0, slots=0)
    classes = [Hash32(bytes([number]) * 32) for number in range(1, 17)]
    calls += [(owner, stakes.open_slots(each, 16)) for each in classes]
    calls.append((owner, stakes.exit()))
    for sender, call in calls:
        gas = evm.send(sender, call).gas
        assert gas <= call.gas and call.gas < 16_777_216, "a transaction's cap since EIP-7825"
