"""Tests that `quorate node up` opens every stake slot that is missing, however often it starts."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from contracts.evm import Reverted
from contracts.evm_node import EvmNode
from contracts.market import CHAIN_ID, CLASS, Market, key, market
from quorate_contracts.calls import ask
from quorate_contracts.encodings import OPEN_MAX
from quorate_contracts.generated.contract_calls import Call
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.owner.registration import agree_on_network, network_of, register
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32
from quorate_runtime.chain.types import Fees
from quorate_runtime.keys.crypto import PeerKey

OWNER, OPERATOR = key("owner9"), key("operator9")
KEYS = ProviderKeys(
    OWNER.address, OWNER.address, OPERATOR, PeerKey(b"\x05" * 32), keccak256(b"box"), OWNER
)
STAKE = DEVNET.slot_stake


@dataclass
class Node(EvmNode):
    """The owner's chain node, and the sender of its key: it sends each purpose once."""

    purposes: list[str] = field(default_factory=list)
    ends_after: int = 10**6  # transactions, as if the program were killed then

    address = OWNER.address

    async def balance(self, account: Address) -> int:
        return 10**24

    async def chain_id(self) -> int:
        return CHAIN_ID

    async def nonce(self, account: Address) -> int:
        return len(self.purposes)

    async def fees(self) -> Fees:
        return Fees(1, 1)

    async def known(self, purpose: str) -> bool:
        return purpose in self.purposes

    async def send(
        self, purpose: str, to: Address, data: bytes, *, gas: int, **_: object
    ) -> object:
        if purpose not in self.purposes:
            if len(self.purposes) == self.ends_after:
                raise InterruptedError
            self.purposes.append(purpose)
            try:
                self.evm.send(OWNER.address, Call(to, data, gas))
            except Reverted as error:
                raise Refused(Code.CHAIN, str(error)) from error
        return None


def started() -> tuple[Market, Node]:
    """A market in which the owner has tokens, and no allowance."""
    world = market()
    world.fund(OWNER)
    token, stakes = world.contracts.token, world.contracts.stakes
    world.evm.send(OWNER.address, token.approve(stakes.address, Amount(0)))
    return world, Node(world.evm)


async def up(world: Market, node: Node, wanted: dict[Hash32, int]) -> int:
    both = cast("Any", node)
    url = "http://203.0.113.7:7710"
    return (await register(both, world.contracts, KEYS, both, wanted, url)).open_slots


async def test_more_slots_than_one_call_takes_are_opened_in_several() -> None:
    world, node = started()
    other = keccak256(b"another class")
    assert await up(world, node, {CLASS: 2 * OPEN_MAX + 2, other: 1}) == 2 * OPEN_MAX + 3


async def test_what_was_burned_is_approved_with_the_new_slots() -> None:
    world, node = started()
    stakes = world.contracts.stakes
    await up(world, node, {CLASS: 2})
    burn = stakes.burn(OWNER.address, False, Amount(STAKE // 2), Amount(0), ZERO_ADDRESS)
    world.evm.send(world.contracts.faults.address, burn)
    assert await up(world, node, {CLASS: 3}) == 3
    assert world.evm.ask(stakes.stake_of(OWNER.address)) == 3 * STAKE


async def test_slots_in_places_that_were_freed_are_opened_again() -> None:
    world, node = started()
    stakes = world.contracts.stakes
    await up(world, node, {CLASS: 1})
    world.evm.send(OWNER.address, stakes.close_slot(CLASS, 0))
    world.evm.travel(DEVNET.unbond_after)
    world.evm.send(OWNER.address, stakes.unbond_slot(CLASS, 0))
    assert await up(world, node, {CLASS: 1}) == 1
    world.evm.send(OWNER.address, stakes.close_slot(CLASS, 0))
    world.evm.travel(DEVNET.unbond_after)
    world.evm.send(OWNER.address, stakes.unbond_slot(CLASS, 0))
    assert await up(world, node, {CLASS: 1}) == 1


async def test_a_start_that_was_killed_anywhere_opens_no_slot_twice() -> None:
    for killed_after in range(5):
        world, node = started()
        node.ends_after = killed_after
        try:
            await up(world, node, {CLASS: OPEN_MAX + 1})
        except InterruptedError:
            node.ends_after = 10**6
        assert await up(world, node, {CLASS: OPEN_MAX + 1}) == OPEN_MAX + 1
        assert len(set(node.purposes)) == len(node.purposes)


async def test_a_changed_public_address_keeps_account_and_stake() -> None:
    world, node = started()
    both = cast("Any", node)
    stakes = world.contracts.stakes

    async def moved(url: str) -> tuple[object, int]:
        args = (both, world.contracts, KEYS, both, {CLASS: 1}, url)
        found = await register(*args, may_move=True)
        return await ask(both, stakes.network_of(OWNER.address)), found.open_slots

    assert await moved("http://8.8.8.8") == (network_of("http://8.8.8.8"), 1)
    assert await moved("http://9.9.9.9") == (network_of("http://9.9.9.9"), 1)
    assert await moved("http://192.168.1.5") == (network_of("http://9.9.9.9"), 1)
    with pytest.raises(Refused, match="coordinators refuse work from 1.1.1.1"):
        await moved("http://1.1.1.1")
    sent = len(node.purposes)
    await up(world, node, {CLASS: 1})
    assert len(node.purposes) == sent, "without agreement of its coordinators it stays"


def test_one_coordinator_among_several_cannot_move_a_provider() -> None:
    assert agree_on_network(["8.8.8.8", "8.8.8.9:5"], 2)
    assert not agree_on_network(["8.8.8.8", "9.9.9.9"], 2)
    assert not agree_on_network(["8.8.8.8"], 2) and not agree_on_network([], 0)
    assert not agree_on_network(["8.8.8.8"], 1)
