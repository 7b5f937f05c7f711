"""Tests the contracts with a real stablecoin of six decimals that is not ours, and its permits."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from contracts.evm import Evm, refused
from contracts.evm_node import EvmNode
from contracts.foreign_market import TOKEN, foreign_market
from contracts.market import BOSS, CHAIN_ID, CLASS, COORDINATOR, Market, key, network, planned
from quorate_contracts.account.permit import PermitTerms, permit_terms, permit_words
from quorate_contracts.account.relayed_requests import (
    RequestFile,
    calls_to_relay,
    decode,
    encode,
    sign_requests,
)
from quorate_contracts.code_check import Expected, check_codes
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Signature, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner as Key
from support.chain import foreign_token

STAKE = DEVNET.slot_stake
NO_ALLOWANCE = "ERC20: transfer amount exceeds allowance"


def unapproved(world: Market, name: str) -> Key:
    """An account with tokens that has approved nothing for the escrow."""
    who, c = world.fund(key(name)), world.contracts
    world.evm.send(who.address, c.token.approve(c.escrow.address, Amount(0)))
    return who


def deposits(world: Market) -> Callable[[Amount, UnixSeconds, Signature], Call]:
    """Makes deposits into the sender's balance, with a permit."""

    def deposit(amount: Amount, until: UnixSeconds, signature: Signature) -> Call:
        words = permit_words(signature)
        return world.contracts.escrow.deposit_with_permit(amount, ZERO_ADDRESS, until, *words)

    return deposit


async def terms_of(world: Market, owner: Address, chain_id: int = CHAIN_ID) -> PermitTerms | None:
    node = cast("Any", EvmNode(world.evm))
    return await permit_terms(node, world.contracts.token.address, chain_id, owner)


@pytest.mark.rule("0.4")
async def test_bonds_stakes_and_deposits_work_with_a_stablecoin_that_is_not_ours() -> None:
    world = foreign_market()
    deployment = world.contracts.deployment
    await check_codes(cast("Any", EvmNode(world.evm)), Expected.of(deployment))
    owner, client = world.provider(0), world.client(0)
    escrow, stakes = world.contracts.escrow, world.contracts.stakes
    assert world.balance(stakes.address) == DEVNET.coordinator_bond + STAKE
    assert world.balance(escrow.address) == 50 * USD
    world.evm.send(owner, stakes.exit())
    world.evm.travel(DEVNET.unbond_after + 1)
    before = world.balance(owner)
    world.evm.send(owner, stakes.unbond_slot(CLASS, 0))
    assert world.balance(owner) == before + STAKE
    depositor = world.fund(key("client1")).address
    before = world.balance(depositor)
    world.evm.send(depositor, escrow.deposit(Amount(7 * USD), ZERO_ADDRESS))
    world.evm.send(depositor, escrow.withdraw(Amount(7 * USD)))
    assert world.balance(depositor) == before
    assert world.evm.ask(escrow.tab(client.address, COORDINATOR.address)).locked == 50 * USD


@pytest.mark.rule("4.73")
async def test_a_permit_replaces_the_approval_of_a_deposit_and_works_once() -> None:
    world = foreign_market()
    escrow, deposit = world.contracts.escrow, deposits(world)
    client, amount = unapproved(world, "client0"), Amount(9 * USD)
    terms = await terms_of(world, client.address)
    assert terms is not None and terms.nonce == 0
    until = UnixSeconds(world.evm.now + 100)
    signature = terms.sign(escrow.address, amount, until, client)
    call = deposit(amount, until, signature)
    other = deposit(Amount(amount + 1), until, signature)
    refused(world.evm, NO_ALLOWANCE, client.address, other)
    refused(world.evm, NO_ALLOWANCE, unapproved(world, "thief").address, call)
    world.evm.send(client.address, call)
    assert world.evm.ask(escrow.balance_of(client.address)) == amount
    refused(world.evm, NO_ALLOWANCE, client.address, call)
    late = await terms_of(world, client.address)
    assert late is not None and late.nonce == 1
    world.evm.travel(101)
    signature = late.sign(escrow.address, amount, until, client)
    late_call = deposit(amount, until, signature)
    refused(world.evm, NO_ALLOWANCE, client.address, late_call)


@pytest.mark.rule("4.73")
async def test_a_permit_that_a_stranger_sent_first_still_deposits() -> None:
    world = foreign_market()
    escrow, deposit = world.contracts.escrow, deposits(world)
    client, amount = unapproved(world, "client0"), Amount(9 * USD)
    terms = await terms_of(world, client.address)
    assert terms is not None
    until = UnixSeconds(world.evm.now + 100)
    signature = terms.sign(escrow.address, amount, until, client)
    r, s, v = signature[:32], signature[32:64], signature[64]
    permit = "permit(address,address,uint256,uint256,uint8,bytes32,bytes32)"
    words = (client.address, escrow.address, amount, until, v + 27 if v < 27 else v, r, s)
    world.evm.send(key("thief").address, foreign_token.call(TOKEN, permit, *words))
    world.evm.send(client.address, deposit(amount, until, signature))
    assert world.evm.ask(escrow.balance_of(client.address)) == amount


async def test_a_token_without_a_sound_permit_is_approved_instead() -> None:
    """Ours has none. A node that names another chain's domain gets no signature either."""
    world = foreign_market()
    assert await terms_of(world, BOSS.address, CHAIN_ID + 1) is None
    evm, made = Evm.fresh(), planned(DEVNET)
    for each in made.creations[:1]:
        evm.create(each, BOSS.address)
    evm.contracts = Contracts.of(made.deployment)
    assert await terms_of(Market(evm, evm.contracts, DEVNET), BOSS.address) is None


@pytest.mark.rule("2.8", "2.9")
async def test_an_owner_without_coins_and_approval_joins_and_leaves_by_a_relayer() -> None:
    world = foreign_market()
    owner, c = world.fund(key("owner5")), world.contracts
    world.evm.send(owner.address, c.token.approve(c.stakes.address, Amount(0)))
    relayer, fee = key("relayer").address, Amount(USD)
    node = cast("Any", EvmNode(world.evm))
    rest = (keccak256(b"peer"), keccak256(b"box"), network(b"network"))
    named = (key("operator5").address, owner.address, *rest)

    async def file(pulled: int, *wanted: Call) -> RequestFile:
        stake = [c.token.approve(c.stakes.address, Amount(pulled))]
        until = UnixSeconds(world.evm.now + 100)
        made = await sign_requests(node, c, owner, (*stake, *wanted), until, fee)
        return decode(encode(made))

    async def relayed(made: RequestFile, wanted: Amount | None = None) -> int:
        calls = await calls_to_relay(node, c, made, wanted, world.evm.now)
        for call in calls:
            world.evm.send(relayer, call)
        return len(calls)

    joins = await file(2 * STAKE, c.stakes.register(*named), c.stakes.open_slots(CLASS, 2))
    before = world.balance(owner.address)
    with pytest.raises(Refused, match="pays at most 1.00 USD for each"):
        await relayed(joins, Amount(fee + 1))
    assert await relayed(joins) == 3 and await relayed(joins) == 0, "the permit and two requests"
    assert world.evm.ask(c.stakes.open_slots_of(owner.address, CLASS)) == 2
    assert world.balance(relayer) == 2 * fee
    assert world.balance(owner.address) == before - 2 * STAKE - 2 * fee
    leaves = await file(0, c.stakes.exit())
    half = Amount(fee // 2)
    assert await relayed(leaves, half) == 2 and world.balance(relayer) == 2 * fee + half
    again = await file(0, c.stakes.exit())
    world.evm.travel(101)
    with pytest.raises(Refused, match="too old"):
        await relayed(again)


async def test_requests_of_another_market_signer_or_order_are_not_sent() -> None:
    world = foreign_market()
    owner, c, node = world.fund(key("owner5")), world.contracts, cast("Any", EvmNode(world.evm))
    until, fee = UnixSeconds(world.evm.now + 100), Amount(USD)

    leave = c.stakes.exit()
    made = await sign_requests(node, c, owner, (leave, leave), until, fee)
    stolen = replace(made, account=BOSS.address)
    body = replace(made.requests[0].request, max_fee=Amount(9 * USD))
    dearer = replace(made, requests=(replace(made.requests[0], request=body),))
    other = replace(made, chain_id=5)
    gap = replace(made, requests=made.requests[1:])
    for wrong, told in (
        (stolen, "request 1 is not signed by"),
        (dearer, "request 1 is not signed by"),
        (other, "for another market"),
        (replace(made, requests=()), "requests: 0"),
        (gap, "next request is number 0, and the file has 1"),
    ):
        with pytest.raises(Refused, match=told):
            await calls_to_relay(node, c, wrong, None, world.evm.now)
