"""Tests that an exit, a loss of stake, its payment and a new network reach an owner's slots."""

from types import SimpleNamespace

import pytest

from quorate_contracts import deploy
from quorate_contracts.deploy import Contracts
from quorate_contracts.events import Event
from quorate_contracts.generated import stakes
from quorate_coordinator.chain.contract_follower import ContractFollower, note_of
from quorate_coordinator.core.model import events as ev
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.stake_slot import FOREVER, StakeSlot
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Amount, BlockNumber, Hash32
from quorate_runtime.keys.bls import keygen, public_key
from support.markets.scripted_market import COORDINATOR, CPUS, Market, Party

OWNER = Address(b"o" * 20)
BLOCK = BlockNumber(7)
BEACON = BeaconInfo(public_key(keygen(bytes(32))), DEVNET.beacon_period, 1)
CONTRACTS = Contracts.of(
    deploy.plan(ZERO_ADDRESS, 0, 1, BlockNumber(0), DEVNET, BEACON, True).deployment
)


@pytest.mark.parametrize(
    ("event", "note"),
    [
        (stakes.Exited(OWNER), ev.ChainSlotsClosed(OWNER, BlockNumber(BLOCK + 1))),
        (
            stakes.Burned(OWNER, Amount(5), Amount(0), BlockNumber(3)),
            ev.ChainSlotsClosed(OWNER, BlockNumber(3)),
        ),
        (stakes.Burned(OWNER, Amount(5), Amount(0), BlockNumber(0)), None),
        (stakes.NetworkChanged(OWNER, ZERO_HASH), ev.ChainNetworkChanged(OWNER, ZERO_HASH)),
    ],
)
def test_an_event_of_stakes_becomes_a_note(event: Event, note: ev.ChainNote | None) -> None:
    assert note_of(event, BLOCK) == note


def told(market: Market, *notes: ev.ChainNote) -> tuple[StakeSlot, ...]:
    """Returns the slots after notes of the next block."""
    market.chain_says(*notes)
    return market.core.state.pool_slots[CPUS.id()].slots


def test_owner_that_leaves_has_no_slot_and_no_lower_end_is_raised() -> None:
    market = Market(Party(0), Party(1))
    mine, other = market.core.state.pool_slots[CPUS.id()].slots
    out = BlockNumber(mine.active_from + 5)
    slots = told(market, ev.ChainSlotsClosed(mine.owner, out))
    assert slots[0].active_until == out and slots[1] == other
    assert list(market.core.state.pool_slots[CPUS.id()].since) == [other.owner]
    later = BlockNumber(out + 9)
    slots = told(market, ev.ChainSlotClosed(CPUS.id(), 0, later))
    assert slots[0].active_until == out, "it was closed before"
    slots = told(market, ev.ChainSlotOpened(CPUS.id(), 2, mine.owner, later))
    slots = told(market, ev.ChainSlotsClosed(mine.owner, out))
    assert slots[2].active_until == FOREVER, "opened after that block"


def test_slot_whose_stake_was_paid_back_stands_for_nobody() -> None:
    market = Market(Party(0), Party(1))
    mine = market.core.state.pool_slots[CPUS.id()].slots[0]
    told(market, ev.ChainSlotsClosed(mine.owner, BlockNumber(mine.active_from + 1)))
    slots = told(market, ev.ChainSlotFreed(CPUS.id(), 0), ev.ChainSlotFreed(CPUS.id(), 9))
    assert len(slots) == 2 and slots[0].owner == ZERO_ADDRESS
    assert not slots[0].is_active(mine.active_from)


async def test_slots_that_the_chain_does_not_list_are_freed_when_stake_was_paid_back() -> None:
    market = Market(Party(0), Party(1))
    mine = market.core.state.pool_slots[CPUS.id()].slots[0]
    told(market, ev.ChainSlotsClosed(mine.owner, BlockNumber(mine.active_from + 1)))
    empty = bytes(192)
    full = bytes(12) + mine.owner + bytes(96) + mine.active_from.to_bytes(32, "big") + bytes(32)

    class Chain:
        answer = empty

        async def head(self) -> SimpleNamespace:
            return SimpleNamespace(number=9)

        async def call(self, to: Address, data: bytes, *, block: int) -> bytes:
            assert block == 9, "no reorganisation replaces that block"
            return self.answer

    chain = Chain()
    follower = ContractFollower(chain, CONTRACTS, COORDINATOR.address, market.core, None, None)  # type: ignore[arg-type]
    assert await follower._freed(mine.owner, BLOCK) == [ev.ChainSlotFreed(CPUS.id(), 0)]
    chain.answer = full
    assert await follower._freed(mine.owner, BLOCK) == []


def test_new_network_of_an_owner_is_that_of_its_slots() -> None:
    market = Market(Party(0), Party(1))
    mine = market.core.state.pool_slots[CPUS.id()].slots[0]
    slots = told(market, ev.ChainNetworkChanged(mine.owner, Hash32(b"n" * 32)))
    assert [slot.network == b"n" * 32 for slot in slots] == [True, False]
    assert market.core.state.providers[mine.owner].network == b"n" * 32
