"""Tests that the coordinator asks the real contracts for their state and tells its core.

It does so before and after each posting (PROTOCOL §6).
"""

from typing import cast

import pytest

from contracts.evm_node import EvmNode
from contracts.market import COORDINATOR, POSTER, Market, key, peopled
from quorate_coordinator.chain.queries import everything
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import PaidVoucher, PostEpoch
from quorate_coordinator.core.entities import Client
from quorate_coordinator.core.state import State
from quorate_coordinator.effect_performer import EffectPerformer
from quorate_coordinator.storage.documents import JobDocuments
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.ports import Clock, Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.epoch_tree import Leaf, build
from quorate_protocol.units import ZERO_HASH, Address, Amount
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender

CLIENTS = [key("client0"), key("client1")]


def _performer(world: Market, told: list[ev.Event]) -> EffectPerformer:
    """Returns an effect performer that has only a chain, and posts on it."""
    node, state = EvmNode(world.evm, POSTER.address), State()
    with state.transaction():
        for client in CLIENTS:
            state.clients[client.address] = Client(client.address, escrowed=Amount(50 * USD))

    async def submit(event: ev.Event) -> object:
        told.append(event)
        return None

    chain, sender, nothing = cast(ChainClient, node), cast(Sender, node), None
    return EffectPerformer(
        COORDINATOR.address,
        world.contracts,
        chain,
        DEVNET,
        cast(Peers, nothing),
        cast(JobDocuments, nothing),
        sender,
        cast(Clock, nothing),
        submit,
        submit,
        state,  # type: ignore[arg-type]
    )


def _post(world: Market, number: int, owed: int) -> PostEpoch:
    signed = world.voucher(CLIENTS[0], owed)
    leaf = Leaf(1, COORDINATOR.address, Amount(owed), Amount(0), ZERO_HASH)
    return PostEpoch(
        f"epoch-{number}-{world.evm.now}",
        number,
        build([leaf]),
        (PaidVoucher(signed.voucher, signed.session),),
    )


async def test_after_a_posting_or_its_refusal_the_core_learns_the_newest_epoch() -> None:
    world, told = peopled(), list[ev.Event]()
    performer = _performer(world, told)
    first = _post(world, 1, 3 * USD)
    await performer(first)
    assert told == [ev.ChainStateQueried((ev.ChainNewestEpoch(1, first.root.hash),))]
    world.evm.send(
        CLIENTS[0].address,
        world.contracts.escrow.request_release(COORDINATOR.address, Amount(10 * USD)),
    )
    ready = world.evm.now + DEVNET.allocation_release
    with pytest.raises(Refused, match="epoch"):
        await performer(_post(world, 3, 5 * USD))
    one = ev.ChainAllocationChanged(
        CLIENTS[0].address, Amount(40 * USD), Amount(50 * USD), ready, Amount(3 * USD)
    )
    two = ev.ChainAllocationChanged(
        CLIENTS[1].address, Amount(50 * USD), Amount(50 * USD), posted=Amount(0)
    )
    assert told[1:] == [
        ev.ChainStateQueried((one, two, ev.ChainNewestEpoch(1, first.root.hash)))
    ], "number 2 is to come"


async def test_before_the_first_posting_there_is_no_newest_epoch() -> None:
    world = peopled()
    asked = await everything(
        cast(ChainClient, EvmNode(world.evm)), world.contracts, COORDINATOR.address, []
    )
    assert asked == ev.ChainStateQueried((ev.ChainNewestEpoch(0, ZERO_HASH),))


async def test_a_failing_node_does_not_make_a_mined_posting_look_refused() -> None:
    world, told = peopled(), list[ev.Event]()
    performer = _performer(world, told)
    node = cast(EvmNode, performer.client)
    call, first = node.call, _post(world, 1, 3 * USD)
    number = world.contracts.epochs.newest(COORDINATOR.address).data

    async def confused(to: Address, data: bytes, block: object = "latest") -> bytes:
        if data == number:
            raise Refused(Code.CHAIN, "header not found")
        return await call(to, data)

    node.call = confused  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await performer(first)
    node.call = call  # type: ignore[method-assign]
    await performer(first)
    assert told == [ev.ChainStateQueried((ev.ChainNewestEpoch(1, first.root.hash),))], (
        "the core learns it again when the effect is performed again"
    )
