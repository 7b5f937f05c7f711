"""Tests the requests that an account signs and a relayer sends: their limits, and what they repeat.

A relayer sends a request once, before its deadline, and takes no more than the signer allowed.
"""

import pytest

from contracts.evm import Evm, refused
from contracts.market import BOSS, CHAIN_ID, CLASS, COORDINATOR, Key, Market, key, market, network
from quorate_contracts.account.relayed_requests import relayed_call
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.generated.stakes import Stakes
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.envelope import HALF_ORDER
from quorate_protocol.messages.requests import (
    ChangePayoutRequest,
    CloseSlotRequest,
    ExitRequest,
    OpenSlotsRequest,
    RegisterRequest,
    Request,
    UnbondSlotRequest,
)
from quorate_protocol.units import Address, Amount, Nonce, Sequence, Signature, Small, UnixSeconds
from quorate_protocol.values import replace

OWNER, RELAYER = key("owner0"), key("relayer").address
FEE = Amount(USD)
ORDER = 2 * HALF_ORDER + 1


def registration(world: Market) -> RegisterRequest:
    keys = (key("operator0").address, key("payout0").address)
    rest = (keccak256(b"peer"), keccak256(b"box"), network(b"network"))
    return RegisterRequest(OWNER.address, *keys, *rest, Nonce(0), until(world), FEE)


def until(world: Market) -> UnixSeconds:
    return UnixSeconds(world.evm.now + 60)


def relayed(
    world: Market,
    request: Request,
    fee: int = FEE,
    signer: Key = OWNER,
    domain: Domain | None = None,
) -> Call:
    signature = signer.sign(digest(domain or world.domain, request))
    return relayed_call(world.contracts, request, Amount(fee), signature)


@pytest.mark.rule("2.8", "2.9")
def test_an_owner_without_coins_registers_opens_closes_and_leaves() -> None:
    world = market()
    world.fund(OWNER)
    stakes, evm, me = world.contracts.stakes, world.evm, OWNER.address
    before = world.balance(me)
    evm.send(RELAYER, relayed(world, registration(world)))
    place = Sequence(0)
    steps = (
        OpenSlotsRequest(me, CLASS, Small(2), Nonce(1), until(world), FEE),
        CloseSlotRequest(me, CLASS, place, Nonce(2), until(world), FEE),
        ChangePayoutRequest(me, me, Nonce(3), until(world), FEE),
        ExitRequest(me, Nonce(4), until(world), FEE),
    )
    for step in steps:
        evm.send(RELAYER, relayed(world, step))
    assert evm.ask(stakes.owner_count(CLASS)) == 0 and evm.ask(stakes.payout_of(me)) == me
    evm.travel(DEVNET.unbond_after)
    for number in (0, 1):
        last = UnbondSlotRequest(me, CLASS, Sequence(number), Nonce(5 + number), until(world), FEE)
        evm.send(RELAYER, relayed(world, last))
    assert evm.ask(stakes.stake_of(me)) == 0 and evm.ask(stakes.request_nonce(me)) == 7
    assert (world.balance(RELAYER), world.balance(me)) == (7 * FEE, before - 7 * FEE)


@pytest.mark.rule("2.9")
def test_a_relayer_takes_no_more_than_the_signer_allowed() -> None:
    world = market()
    world.fund(OWNER)
    refused(world.evm, "fee", RELAYER, relayed(world, registration(world), FEE + 1))
    world.evm.send(RELAYER, relayed(world, registration(world), 0))
    assert world.balance(RELAYER) == 0


@pytest.mark.rule("2.8")
def test_a_request_is_taken_until_its_deadline() -> None:
    world = market()
    world.fund(OWNER)
    request = registration(world)
    world.evm.now = request.deadline + 1
    refused(world.evm, "expired", RELAYER, relayed(world, request))
    world.evm.now = request.deadline
    world.evm.send(RELAYER, relayed(world, request))


@pytest.mark.rule("2.8")
def test_a_request_is_taken_once_and_in_order() -> None:
    world = market()
    world.fund(OWNER)
    first = registration(world)
    second = OpenSlotsRequest(OWNER.address, CLASS, Small(1), Nonce(1), until(world), FEE)
    refused(world.evm, "nonce", RELAYER, relayed(world, second))
    world.evm.send(RELAYER, relayed(world, first))
    refused(world.evm, "nonce", RELAYER, relayed(world, first))
    world.evm.send(RELAYER, relayed(world, second))
    refused(world.evm, "nonce", RELAYER, relayed(world, second))


@pytest.mark.rule("2.8")
def test_only_the_accounts_signature_over_these_very_fields_counts() -> None:
    world = market()
    world.provider(0)
    good = ChangePayoutRequest(OWNER.address, OWNER.address, Nonce(0), until(world), FEE)
    evm, signature = world.evm, OWNER.sign(digest(world.domain, good))
    for other in (
        replace(good, payout=BOSS.address),
        replace(good, max_fee=Amount(2 * FEE)),
        replace(good, deadline=UnixSeconds(good.deadline + 1)),
        replace(good, account=COORDINATOR.address),
    ):
        refused(evm, "signature", RELAYER, relayed_call(world.contracts, other, FEE, signature))
    refused(evm, "signature", RELAYER, relayed(world, good, signer=key("operator0")))
    exit_ = ExitRequest(OWNER.address, Nonce(0), good.deadline, FEE)
    refused(evm, "signature", RELAYER, relayed_call(world.contracts, exit_, FEE, signature))


@pytest.mark.rule("3.3")
def test_a_malleable_signature_is_refused() -> None:
    world = market()
    world.provider(0)
    request = ExitRequest(OWNER.address, Nonce(0), until(world), FEE)
    good = OWNER.sign(digest(world.domain, request))
    r, s, v = good[:32], int.from_bytes(good[32:64], "big"), good[64]
    high = Signature(r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v]))
    zero = Signature(bytes(64) + b"\x1b")
    compact = Signature(r + (s | (v - 27) << 255).to_bytes(32, "big") + b"\x00")
    for bad in (high, zero, compact):
        call = relayed_call(world.contracts, request, FEE, bad)
        refused(world.evm, "signature", RELAYER, call)
    world.evm.send(RELAYER, relayed_call(world.contracts, request, FEE, good))


@pytest.mark.rule("3.1")
@pytest.mark.parametrize("place", ["chain", "deployment"])
def test_a_request_for_another_chain_or_deployment_is_refused(place: str) -> None:
    world = market()
    world.provider(0)
    stakes = world.contracts.stakes.address
    other = {
        "chain": Domain(CHAIN_ID + 1, stakes),
        "deployment": Domain(CHAIN_ID, world.contracts.court.address),
    }
    request = ExitRequest(OWNER.address, Nonce(0), until(world), FEE)
    refused(world.evm, "signature", RELAYER, relayed(world, request, domain=other[place]))


@pytest.mark.rule("2.9")
def test_a_request_whose_fee_cannot_be_paid_changes_nothing() -> None:
    world = market()
    poor = key("poor owner")
    keys = (poor.address, key("operator").address, key("poor payout").address)
    rest = (keccak256(b"peer"), keccak256(b"box"), network(b"network"))
    request = RegisterRequest(*keys, *rest, Nonce(0), until(world), FEE)
    call = relayed(world, request, signer=poor)
    before = world.evm.state_root
    with pytest.raises(Exception, match=".*"):
        world.evm.send(RELAYER, call)
    assert world.evm.state_root == before
    assert registered(world.evm, world.contracts.stakes, poor.address) == 0


def registered(evm: Evm, stakes: Stakes, account: Address) -> int:
    return evm.ask(stakes.role_of(account))
