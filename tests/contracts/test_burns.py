"""Tests what Stakes burns for its modules, of stake and bonds, and how an account restores it."""

import pytest

from contracts.evm import Mined, refused
from contracts.market import CLASS, COORDINATOR, Market, key, market
from quorate_contracts.generated.stakes import Burned, ToppedUp
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, UnixSeconds

BOND, STAKE = DEVNET.coordinator_bond, DEVNET.slot_stake
WHO = COORDINATOR.address


def burn(world: Market, account: Address, amount: int, module: str = "faults") -> Mined:
    """Lets a module burn of a bond if the account is the coordinator, else of a stake."""
    is_bond = account == WHO
    call = world.contracts.stakes.burn(account, is_bond, Amount(amount), Amount(0), ZERO_ADDRESS)
    return world.evm.send(getattr(world.contracts, module).address, call)


@pytest.mark.rule("2.33")
@pytest.mark.parametrize("module", ["court", "faults"])
def test_two_modules_burn_at_most_one_slots_stake_of_a_bond(module: str) -> None:
    world = market()
    stakes = world.contracts.stakes
    held = world.balance(stakes.address)
    mined = burn(world, WHO, 60 * USD, module)
    assert mined.events == (Burned(WHO, Amount(60 * USD), Amount(0), 0),)  # type: ignore[arg-type]
    burn(world, WHO, 10 * BOND, module)
    left = BOND - 60 * USD - STAKE
    assert world.evm.ask(stakes.bond_of(WHO)) == left == world.staked()
    assert world.balance(stakes.address) == held, "what was burned stays"


@pytest.mark.rule("2.31", "2.32")
def test_a_bond_counts_while_half_of_it_is_there() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    registered = evm.now
    evm.travel(100)
    for _ in range(BOND // 2 // STAKE):
        burn(world, WHO, STAKE)
    assert evm.ask(stakes.is_bonded(WHO))
    evm.travel(100)
    burn(world, WHO, 1)
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


@pytest.mark.rule("2.32")
def test_the_bond_of_a_coordinator_that_left_counts_until_it_is_paid_back() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    evm.send(WHO, stakes.exit())
    evm.travel(DEVNET.unbond_after)
    assert evm.ask(stakes.bonded_at(WHO, UnixSeconds(evm.now)))
    evm.send(WHO, stakes.unbond_coordinator())
    found = [evm.ask(stakes.bonded_at(WHO, UnixSeconds(evm.now + late))) for late in (0, 1)]
    assert found == [True, False] and not evm.ask(stakes.is_bonded(WHO))


@pytest.mark.rule("2.31")
def test_a_top_up_restores_what_is_missing_and_no_more() -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=2)
    refused(evm, "amount", WHO, stakes.top_up(Amount(1)))
    refused(evm, "amount", owner, stakes.top_up(Amount(1)))
    refused(evm, "amount", owner, stakes.top_up(Amount(0)))
    burn(world, owner, STAKE)
    burn(world, WHO, 3)
    refused(evm, "amount", owner, stakes.top_up(Amount(STAKE + 1)))
    refused(evm, "amount", WHO, stakes.top_up(Amount(4)))
    event = ToppedUp(owner, Amount(STAKE))
    assert evm.send(owner, stakes.top_up(Amount(STAKE))).events == (event,)
    evm.send(WHO, stakes.top_up(Amount(3)))
    assert evm.ask(stakes.stake_of(owner)) == 2 * STAKE and evm.ask(stakes.bond_of(WHO)) == BOND


@pytest.mark.rule("2.34")
def test_a_burn_closes_no_slot_while_half_of_the_stake_is_left() -> None:
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0, slots=2)
    for amount, out, is_open in ((STAKE, 0, 2), (1, evm.number + 2, 0)):
        mined = burn(world, owner, amount)
        assert mined.events == (Burned(owner, Amount(amount), Amount(0), out),)  # type: ignore[arg-type]
        assert evm.ask(stakes.open_slots_of(owner, CLASS)) == is_open
        assert evm.ask(stakes.owner_count(CLASS)) == (1 if is_open else 0)


def test_no_slot_opens_in_the_block_of_a_burn() -> None:
    """One opened there could not be told from those that the burn closed."""
    world = market()
    stakes, evm, owner = world.contracts.stakes, world.evm, world.provider(0)
    burn(world, owner, STAKE)
    out = evm.ask(stakes.out_block(owner))
    assert out == evm.number, "the next block is the first one without the slots"
    evm.send(owner, stakes.open_slots(CLASS, 1))
    assert evm.ask(stakes.open_slots_of(owner, CLASS)) == 1
