"""Tests that one owner counts once, in a class and on a jury, however it is registered.

The rules are in PROTOCOL §2 and §5. A beacon contract also needs a chain with the curve.
"""

from dataclasses import replace

import pytest
from eth.vm.forks.cancun import CancunVM

from contracts.evm import PyEvm, Reverted, _Chain, only_py_evm
from contracts.market import BOSS, CLASS, Market, key, market, peopled, planned
from contracts.trial import Trial
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address, Hash32

ACCUSED = key("owner0").address


def kin(world: Market, number: int, payout: Address, network: Hash32) -> Address:
    """Registers a provider with a slot, which shares payout address or network with another
    provider.
    """
    owner, operator = world.fund(key(f"owner{number}")), key(f"operator{number}")
    call = world.contracts.stakes.register(
        operator.address, payout, keccak256(b"peer"), keccak256(b"box"), network
    )
    world.evm.send(owner.address, call)
    world.evm.send(owner.address, world.contracts.stakes.open_slots(CLASS, 1))
    world.operators[owner.address] = operator
    return owner.address


@pytest.mark.rule("5.73")
def test_one_network_has_one_seat() -> None:
    """In a small class every owner that may judge is a juror. Here four owners have three seats,
    because two share a network.
    """
    world = peopled(providers=4)
    network = world.evm.ask(world.contracts.stakes.network_of(key("owner2").address))
    twin = kin(world, 21, key("payout21").address, network)
    world.evm.travel(1)
    trial = Trial.opened(world, ACCUSED)
    trial.draw()
    assert len(trial.jurors) == 3
    assert len(set(trial.jurors) & {twin, key("owner2").address}) == 1, "one of the pair"


@pytest.mark.rule("2.16")
def test_an_owner_that_opens_slots_twice_is_one_owner() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    owner = world.provider(0, slots=1)
    evm.send(owner, stakes.open_slots(CLASS, 2))
    assert evm.ask(stakes.owner_count(CLASS)) == 1
    for place, left in ((0, 1), (1, 1), (2, 0)):
        evm.send(owner, stakes.close_slot(CLASS, place))
        assert evm.ask(stakes.owner_count(CLASS)) == left


class OldChain(_Chain):
    """A chain with rules from before the functions of the curve."""

    vm_configuration = ((0, CancunVM),)


@only_py_evm("rules of an older fork")
@pytest.mark.rule("0.5")
def test_a_beacon_is_not_made_on_a_chain_without_the_curve() -> None:
    """On such a chain no round could be proven, so no jury could be drawn."""
    fresh = PyEvm.made()
    old = replace(fresh, chain=OldChain(fresh.chain.chaindb.db, fresh.chain.get_canonical_head()))
    for creation in planned(DEVNET).creations:
        if creation.name == "Beacon":
            with pytest.raises(Reverted, match="EIP-2537"):
                old.create(creation, BOSS.address)
            return
        old.create(creation, BOSS.address)
    raise AssertionError("a deployment has a beacon")
