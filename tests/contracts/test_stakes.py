"""Tests the registry: accounts, keys, slots, and unbonding of stake."""

import pytest

from contracts.evm import Reverted, refused
from contracts.market import BOSS, CLASS, COORDINATOR, STATEMENT, key, market, network
from quorate_contracts.encodings import OPEN_BLOCK, is_active
from quorate_contracts.generated.stakes import (
    CoordinatorRegistered,
    Registered,
    SlotClosed,
    SlotOpened,
)
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import ZERO_ADDRESS, Hash32, UnixSeconds

OTHER = keccak256(b"another pool")


@pytest.mark.rule("0.10")
def test_registration_publishes_every_key_and_happens_once() -> None:
    world = market()
    stakes, owner = world.contracts.stakes, key("fresh")
    call = stakes.register(
        key("op").address,
        key("pay").address,
        keccak256(b"peer"),
        keccak256(b"box"),
        network(b"net"),
    )
    event = world.evm.send(owner.address, call).events[0]
    assert event == Registered(
        owner.address,
        key("op").address,
        key("pay").address,
        keccak256(b"peer"),
        keccak256(b"box"),
        network(b"net"),
    )
    refused(world.evm, "registered", owner.address, call)
    refused(
        world.evm,
        "registered",
        owner.address,
        stakes.register_coordinator(key("a").address, key("b").address),
    )
    for keys in ((ZERO_ADDRESS, BOSS.address), (BOSS.address, ZERO_ADDRESS)):
        refused(world.evm, "zero", BOSS.address, stakes.register_coordinator(*keys))
    refused(
        world.evm,
        "zero",
        BOSS.address,
        stakes.register(ZERO_ADDRESS, BOSS.address, CLASS, CLASS, CLASS),
    )
    refused(
        world.evm,
        "zero",
        BOSS.address,
        stakes.register(BOSS.address, BOSS.address, CLASS, CLASS, Hash32(bytes(32))),
    )


def test_a_client_that_deposited_can_still_become_a_coordinator() -> None:
    world = market()
    client = world.client(0)
    keys = (key("s").address, key("p").address)
    call = world.contracts.stakes.register_coordinator(*keys)
    events = world.evm.send(client.address, call).events
    assert events == (CoordinatorRegistered(client.address, *keys),)


@pytest.mark.rule("2.3")
def test_a_key_counts_from_its_first_to_its_last_second_inclusive() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    owner, old, new = world.provider(0), key("operator0").address, key("operator0 next").address
    start = evm.now
    evm.travel(100)
    evm.send(owner, stakes.rotate_key(new))
    rotated = evm.now
    valid = [
        [
            evm.ask(stakes.key_valid(owner, each, UnixSeconds(at)))
            for at in (start - 1, start, rotated, rotated + 1)
        ]
        for each in (old, new)
    ]
    assert valid == [[False, True, True, False], [False, False, True, True]]
    assert evm.ask(stakes.key_range(owner, old)) == (start, rotated)
    assert evm.ask(stakes.operator_key(owner)) == new
    refused(evm, "key", owner, stakes.rotate_key(old))
    assert not evm.ask(stakes.key_valid(key("stranger").address, old, UnixSeconds(rotated)))


@pytest.mark.rule("2.12", "2.13", "2.15")
def test_slots_are_listed_with_their_block_range() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    owner = world.provider(0, slots=0)
    mined = evm.send(owner, stakes.open_slots(CLASS, 3))
    block = evm.number - 1  # the block of that transaction
    assert [event for event in mined.events if isinstance(event, SlotOpened)] == [
        SlotOpened(CLASS, owner, i, block + 1) for i in range(3)
    ]  # type: ignore[arg-type]
    slot = evm.ask(stakes.slot(CLASS, 1))
    assert (slot.owner, slot.operator_key, slot.payout) == (
        owner,
        key("operator0").address,
        key("payout0").address,
    )
    assert (slot.from_block, slot.until_block) == (block + 1, OPEN_BLOCK)
    assert not is_active(slot, block) and is_active(slot, block + 1)
    assert evm.ask(stakes.slot_page(CLASS, 0)) == tuple(
        evm.ask(stakes.slot(CLASS, i)) for i in range(3)
    )
    assert evm.ask(stakes.slot_page(CLASS, 2)) == (evm.ask(stakes.slot(CLASS, 2)),)
    assert evm.ask(stakes.stake_of(owner)) == 3 * DEVNET.slot_stake
    assert world.balance(stakes.address) == world.staked()


@pytest.mark.rule("2.1", "2.15", "6.30")
def test_closed_slots_unbond_after_the_delay_and_free_their_place() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    owner, other = world.provider(0, slots=2), world.provider(1)
    before = world.balance(owner)
    closed = evm.send(owner, stakes.close_slot(CLASS, 0)).events[0]
    block = evm.number - 1
    assert closed == SlotClosed(CLASS, owner, 0, block + 1)  # type: ignore[arg-type]
    slot = evm.ask(stakes.slot(CLASS, 0))
    assert is_active(slot, block) and not is_active(slot, block + 1)
    refused(evm, "phase", owner, stakes.close_slot(CLASS, 0))
    refused(evm, "owner", other, stakes.close_slot(CLASS, 1))
    evm.travel(DEVNET.unbond_after - 1)
    refused(evm, "early", owner, stakes.unbond_slot(CLASS, 0))
    refused(evm, "early", owner, stakes.unbond_slot(CLASS, 1))
    evm.travel(1)
    refused(evm, "owner", other, stakes.unbond_slot(CLASS, 0))
    evm.send(owner, stakes.unbond_slot(CLASS, 0))
    assert world.balance(owner) == before + DEVNET.slot_stake
    refused(evm, "owner", owner, stakes.unbond_slot(CLASS, 0))
    assert evm.ask(stakes.slot(CLASS, 0)).owner == ZERO_ADDRESS
    evm.send(other, stakes.open_slots(CLASS, 2))
    assert [evm.ask(stakes.slot(CLASS, i)).owner for i in range(4)] == [other, owner, other, other]
    assert evm.ask(stakes.slot_count(CLASS)) == 4
    assert world.balance(stakes.address) == world.staked()


@pytest.mark.rule("2.16")
def test_owners_are_counted_once_per_class() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    first, second = world.provider(0, slots=2), world.provider(1)
    evm.send(first, stakes.open_slots(OTHER, 1))
    assert (evm.ask(stakes.owner_count(CLASS)), evm.ask(stakes.owner_count(OTHER))) == (2, 1)
    evm.send(first, stakes.close_slot(CLASS, 0))
    assert evm.ask(stakes.owner_count(CLASS)) == 2
    evm.send(first, stakes.close_slot(CLASS, 1))
    assert (evm.ask(stakes.owner_count(CLASS)), evm.ask(stakes.owner_count(OTHER))) == (1, 1)
    evm.send(first, stakes.open_slots(CLASS, 1))
    evm.send(second, stakes.close_slot(CLASS, 2))
    assert evm.ask(stakes.owner_count(CLASS)) == 1


def test_an_account_stakes_in_at_most_sixteen_pools() -> None:
    world = market()
    owner = world.provider(0)
    for i in range(15):
        world.evm.send(owner, world.contracts.stakes.open_slots(keccak256(b"class %d" % i), 1))
    with pytest.raises(Reverted):  # Vyper's bounded list is full, and reverts without a reason
        world.evm.send(owner, world.contracts.stakes.open_slots(keccak256(b"class 15"), 1))


@pytest.mark.rule("2.14", "6.30")
def test_coordinators_rotate_and_leave() -> None:
    world = market()
    stakes, evm, who = world.contracts.stakes, world.evm, COORDINATOR.address
    assert evm.ask(stakes.bond_of(who)) == DEVNET.coordinator_bond
    assert evm.ask(stakes.key_valid(who, STATEMENT.address, UnixSeconds(evm.now)))
    evm.send(who, stakes.change_posting_key(key("second poster").address))
    assert evm.ask(stakes.posting_key(who)) == key("second poster").address
    refused(evm, "early", who, stakes.unbond_coordinator())
    evm.send(who, stakes.exit())
    evm.travel(DEVNET.unbond_after - 1)
    refused(evm, "early", who, stakes.unbond_coordinator())
    evm.travel(1)
    before = world.balance(who)
    evm.send(who, stakes.unbond_coordinator())
    assert world.balance(who) == before + DEVNET.coordinator_bond
    refused(evm, "amount", who, stakes.unbond_coordinator())
    assert world.balance(stakes.address) == world.staked()


@pytest.mark.rule("2.1")
def test_roles_are_checked() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    owner = world.provider(0)
    refused(evm, "registered", COORDINATOR.address, stakes.open_slots(CLASS, 1))
    refused(evm, "registered", BOSS.address, stakes.rotate_key(key("x").address))
    refused(evm, "registered", COORDINATOR.address, stakes.change_payout(BOSS.address))
    refused(evm, "registered", owner, stakes.change_posting_key(BOSS.address))
    evm.send(owner, stakes.change_payout(BOSS.address))
    assert evm.ask(stakes.payout_of(owner)) == BOSS.address
