"""Tests what Stakes takes for its modules: stake of providers, bonds of coordinators, fines. An
account restores them.
"""

import pytest

from contracts.evm import Mined, refused
from contracts.market import CLASS, COORDINATOR, Market, key, market
from quorate_contracts.bindings.events import Exited, Fined, Slashed, ToppedUp
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Address, Amount, UnixSeconds

BOND, STAKE = DEVNET.coordinator_bond, DEVNET.slot_stake
WHO = COORDINATOR.address


def take(world: Market, how: str, account: Address, amount: int, module: str = "faults") -> Mined:
    """Lets a module slash or fine an account, and gives the tokens to nobody in the market."""
    call = world.contracts.stakes._call(how, 400_000, account, amount)
    return world.evm.send(getattr(world.contracts, module).address, call)


@pytest.mark.rule("2.33")
@pytest.mark.parametrize("module", ["court", "faults"])
def test_two_modules_may_slash_a_coordinators_bond(module: str) -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    place = getattr(world.contracts, module).address
    before = world.balance(place)
    mined = take(world, "slash", WHO, 100 * USD, module)
    assert mined.events == (Slashed(WHO, Amount(100 * USD), 0),)  # type: ignore[arg-type]
    assert evm.ask(stakes.bond_of(WHO)) == BOND - 100 * USD
    assert world.balance(place) == before + 100 * USD
    take(world, "slash", WHO, 10 * BOND, module)
    assert evm.ask(stakes.bond_of(WHO)) == 0
    assert world.balance(place) == before + BOND


@pytest.mark.rule("2.33")
@pytest.mark.parametrize("who", ["escrow", "epochs", "cases", "beacon", "token"])
def test_no_other_contract_may_take_or_freeze(who: str) -> None:
    world = market()
    owner, place = world.provider(0), getattr(world.contracts, who).address
    for how, arguments in (
        ("slash", (owner, 1)),
        ("fine", (owner, 1)),
        ("freeze", (owner,)),
        ("unfreeze", (owner,)),
    ):
        call = world.contracts.stakes._call(how, 200_000, *arguments)
        refused(world.evm, "module", place, call)


@pytest.mark.rule("2.31", "2.32")
def test_a_bond_counts_while_half_of_it_is_there() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    registered = evm.now
    evm.travel(100)
    take(world, "slash", WHO, BOND // 2)
    assert evm.ask(stakes.is_bonded(WHO))
    evm.travel(100)
    take(world, "slash", WHO, 1)
    lost = evm.now
    assert not evm.ask(stakes.is_bonded(WHO))
    evm.travel(100)
    evm.send(WHO, stakes.top_up(Amount(1)))
    again = evm.now
    assert evm.ask(stakes.is_bonded(WHO))
    moments = (registered - 1, registered, lost, lost + 1, again - 1, again, again + 1)
    found = [evm.ask(stakes.bonded_at(WHO, UnixSeconds(at))) for at in moments]
    assert found == [False, True, True, False, False, True, True]
    assert not evm.ask(stakes.bonded_at(key("stranger").address, UnixSeconds(again)))
    money_of(world)


@pytest.mark.rule("2.32")
def test_a_retired_coordinators_bond_counts_until_it_is_paid_back() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    assert evm.send(WHO, stakes.retire_coordinator()).events == (Exited(WHO),)
    refused(evm, "registered", WHO, stakes.exit())
    refused(evm, "registered", WHO, stakes.top_up(Amount(1)))
    evm.travel(DEVNET.unbond_after)
    assert evm.ask(stakes.bonded_at(WHO, UnixSeconds(evm.now)))
    evm.send(WHO, stakes.unbond_coordinator())
    found = [evm.ask(stakes.bonded_at(WHO, UnixSeconds(evm.now + late))) for late in (0, 1)]
    assert found == [True, False] and not evm.ask(stakes.is_bonded(WHO))
    refused(evm, "registered", WHO, stakes.top_up(Amount(BOND)))


@pytest.mark.rule("2.31")
def test_a_top_up_restores_what_is_missing_and_no_more() -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=2)
    refused(evm, "amount", WHO, stakes.top_up(Amount(1)))
    refused(evm, "amount", owner, stakes.top_up(Amount(1)))
    refused(evm, "amount", owner, stakes.top_up(Amount(0)))
    take(world, "fine", owner, STAKE)
    take(world, "slash", WHO, 3)
    refused(evm, "amount", owner, stakes.top_up(Amount(STAKE + 1)))
    refused(evm, "amount", WHO, stakes.top_up(Amount(4)))
    event = ToppedUp(owner, Amount(STAKE))
    assert evm.send(owner, stakes.top_up(Amount(STAKE))).events == (event,)
    evm.send(WHO, stakes.top_up(Amount(3)))
    assert evm.ask(stakes.stake_of(owner)) == 2 * STAKE and evm.ask(stakes.bond_of(WHO)) == BOND
    money_of(world)


@pytest.mark.rule("2.34")
@pytest.mark.parametrize(("extra", "open_after"), [(0, 2), (1, 0)])
def test_a_fine_closes_no_slot_while_half_of_the_stake_is_left(extra: int, open_after: int) -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=2)
    mined = take(world, "fine", owner, STAKE + extra)
    out = 0 if open_after else evm.number
    assert mined.events == (Fined(owner, Amount(STAKE + extra), out),)  # type: ignore[arg-type]
    assert evm.ask(stakes.open_slots_of(owner, CLASS)) == open_after
    assert evm.ask(stakes.owner_count(CLASS)) == (1 if open_after else 0)
    money_of(world)


@pytest.mark.rule("2.30", "6.30")
def test_a_slot_that_a_slash_closed_unbonds_by_itself() -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=2)
    take(world, "slash", owner, STAKE)
    evm.travel(DEVNET.unbond_after - 1)
    refused(evm, "early", owner, stakes.unbond_slot(CLASS, 0))
    evm.travel(1)
    before = world.balance(owner)
    evm.send(owner, stakes.unbond_slot(CLASS, 0))
    evm.send(owner, stakes.unbond_slot(CLASS, 1))
    assert world.balance(owner) == before + STAKE
    money_of(world)


@pytest.mark.rule("2.30", "6.30")
def test_an_exit_closes_every_slot_and_starts_the_delay() -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=3)
    block = evm.number
    assert evm.send(owner, stakes.exit()).events == (Exited(owner),)
    slot = evm.ask(stakes.slot(CLASS, 1))
    assert slot.is_active(block) and not slot.is_active(block + 1)
    assert evm.ask(stakes.owner_count(CLASS)) == 0
    evm.travel(DEVNET.unbond_after - 1)
    refused(evm, "early", owner, stakes.unbond_slot(CLASS, 2))
    evm.travel(1)
    before = world.balance(owner)
    for place in range(3):
        evm.send(owner, stakes.unbond_slot(CLASS, place))
    assert world.balance(owner) == before + 3 * STAKE
    evm.send(owner, stakes.open_slots(CLASS, 1))
    refused(evm, "early", owner, stakes.unbond_slot(CLASS, 2))
    money_of(world)


@pytest.mark.rule("5.88")
def test_a_frozen_coordinator_takes_no_bond_back() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    evm.send(WHO, stakes.retire_coordinator())
    evm.send(world.contracts.court.address, stakes._call("freeze", 100_000, WHO))
    evm.travel(DEVNET.unbond_after)
    refused(evm, "frozen", WHO, stakes.unbond_coordinator())
    evm.send(world.contracts.court.address, stakes._call("unfreeze", 100_000, WHO))
    evm.send(WHO, stakes.unbond_coordinator())


def money_of(world: Market) -> None:
    """Asserts that Stakes holds exactly stakes and bonds."""
    c, evm = world.contracts, world.evm
    accounts = [
        evm.ask(c.stakes.account_at(i + 1)) for i in range(evm.ask(c.stakes.account_count()))
    ]
    total = sum(evm.ask(c.stakes.stake_of(x)) + evm.ask(c.stakes.bond_of(x)) for x in accounts)
    assert world.balance(c.stakes.address) == total
