"""Tests when a changed payout or network counts, and that a payout belongs to one account."""

import pytest

from contracts.evm import Evm, refused
from contracts.market import BOSS, COORDINATOR, key, market, network
from quorate_contracts.generated.stakes import Stakes
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Address, Hash32, UnixSeconds

OWNER = key("owner0").address
FIRST, SECOND, THIRD = (key(f"payout{name}").address for name in ("0", " b", " c"))
NETWORK = Hash32(b"\x04" + bytes(31))  # of owner 0


def payout_at(evm: Evm, stakes: Stakes, at: int) -> Address:
    return evm.ask(stakes.profile_at(OWNER, UnixSeconds(at)))[0]


@pytest.mark.rule("2.29")
def test_a_new_payout_is_paid_at_once_and_counts_in_draws_after_the_delay() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    world.provider(0)
    evm.send(OWNER, stakes.change_payout(SECOND))
    changed = evm.now
    assert evm.ask(stakes.payout_of(OWNER)) == SECOND
    counts = changed + DEVNET.profile_delay
    assert evm.ask(stakes.profile_changes(OWNER)) == (counts, 0)
    found = [payout_at(evm, stakes, at) for at in (changed, counts - 1, counts)]
    assert found == [FIRST, FIRST, SECOND]


@pytest.mark.rule("2.29")
def test_a_profile_changes_again_after_two_delays() -> None:
    """One old value is kept. So a moment that is at most one delay ago has its true value."""
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    world.provider(0)
    evm.send(OWNER, stakes.change_payout(SECOND))
    first = evm.now
    evm.now = first + 2 * DEVNET.profile_delay - 1
    refused(evm, "early", OWNER, stakes.change_payout(THIRD))
    evm.send(OWNER, stakes.change_network(network(b"moved")))
    evm.now = first + 2 * DEVNET.profile_delay
    evm.send(OWNER, stakes.change_payout(THIRD))
    ends = (evm.now - DEVNET.profile_delay, evm.now + DEVNET.profile_delay)
    assert [payout_at(evm, stakes, at) for at in (ends[0], ends[1] - 1, ends[1])] == [
        SECOND,
        SECOND,
        THIRD,
    ]


@pytest.mark.rule("2.29")
def test_a_network_changes_by_its_provider_only() -> None:
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    world.provider(0)
    refused(evm, "registered", COORDINATOR.address, stakes.change_network(NETWORK))
    refused(evm, "zero", OWNER, stakes.change_network(Hash32(bytes(32))))
    evm.send(OWNER, stakes.change_network(network(b"moved")))
    assert evm.ask(stakes.network_of(OWNER)) == network(b"moved")
    assert evm.ask(stakes.profile_at(OWNER, UnixSeconds(evm.now)))[1] == NETWORK


@pytest.mark.rule("2.28")
def test_a_payout_belongs_to_one_account() -> None:
    """An owner that names another's payout would decide who audits and judges beside it."""
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    first, second = world.provider(0), world.provider(1)
    refused(evm, "payout", first, stakes.change_payout(key("payout1").address))
    refused(evm, "payout", first, stakes.change_payout(second))
    refused(evm, "payout", first, stakes.change_payout(COORDINATOR.address))
    keys = (key("op").address, FIRST, keccak256(b"peer"), keccak256(b"box"), NETWORK)
    refused(evm, "payout", BOSS.address, stakes.register(*keys))
    evm.send(first, stakes.change_payout(first))
    refused(evm, "payout", second, stakes.change_payout(FIRST))  # it stays the first one's


@pytest.mark.rule("2.28")
def test_an_account_can_always_be_paid_itself() -> None:
    """A stranger that names an unregistered account keeps nobody from registering."""
    world = market()
    stakes, evm = world.contracts.stakes, world.evm
    world.provider(0)
    evm.send(OWNER, stakes.change_payout(BOSS.address))
    own = (key("op").address, BOSS.address, keccak256(b"peer"), keccak256(b"box"), NETWORK)
    evm.send(BOSS.address, stakes.register(*own))
    assert evm.ask(stakes.payout_of(BOSS.address)) == BOSS.address
