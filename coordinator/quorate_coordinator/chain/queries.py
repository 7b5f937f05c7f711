"""Queries the chain's current state. Logs do not report what a reorganisation removed, and a chain
node may withhold a log.
"""

from collections.abc import Iterable
from typing import TypeVar

from quorate_contracts.bindings.calls import Query
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.registration import ask
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.state import State
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain.client import BlockId, ChainClient

T = TypeVar("T")
RETRY_SECONDS = 2.0


async def newest_epoch(
    chain: ChainClient, contracts: Contracts, coordinator: Address
) -> ev.ChainNewestEpoch:
    """Returns the newest epoch that this coordinator has posted."""
    number = await view(chain, contracts.epochs.newest(coordinator))
    if number >= 1 << 32:
        raise Unavailable(
            f"the chain node says that epoch {hex(number)[:40]} is the newest", RETRY_SECONDS
        )
    return ev.ChainNewestEpoch(
        number, (await view(chain, contracts.epochs.epoch(coordinator, number))).root
    )


async def allocation_of(
    chain: ChainClient,
    contracts: Contracts,
    client: Address,
    coordinator: Address,
    block: BlockId = "latest",
) -> ev.ChainAllocationChanged:
    """Returns what a client has allocated, and what its vouchers have charged. Raises Unavailable
    if the chain node answers nonsense.
    """
    held = await view(chain, contracts.escrow.allocation(client, coordinator), block)
    free = max(0, held.allocated - held.releasing)
    if held.allocated >= 2**128 or held.charged > held.allocated or held.release_at >= 2**64:
        said = (
            f"allocated {hex(held.allocated)[:40]}, charged {hex(held.charged)[:40]}, "
            f"releasing at {hex(held.release_at)[:40]}"
        )
        raise Unavailable(f"the chain node says of 0x{client.hex()}: {said}", RETRY_SECONDS)
    return ev.ChainAllocationChanged(
        client, Amount(free), Amount(held.allocated), held.release_at, Amount(held.charged)
    )


async def everything(
    chain: ChainClient, contracts: Contracts, coordinator: Address, clients: Iterable[Address]
) -> ev.ChainStateQueried:
    """Returns all of the chain's state on which an epoch depends. It takes a request for each
    client, so it is used only after a reorganisation or a refused posting.
    """
    allocations = [await allocation_of(chain, contracts, client, coordinator) for client in clients]
    return ev.ChainStateQueried((*allocations, await newest_epoch(chain, contracts, coordinator)))


def backers(state: State) -> list[Address]:
    """Returns the clients whose money an epoch may count on."""
    return [client.account for client in state.clients.values() if client.escrowed or client.posted]


async def view(chain: ChainClient, query: Query[T], block: BlockId = "latest") -> T:
    """Queries a function that never reverts. Raises Unavailable if the chain node says that it
    reverts: the node is faulty, and no caller must take that for a refused posting.
    """
    try:
        return await ask(chain, query, block)
    except Refused as refused:
        raise Unavailable(f"the chain node: {refused}", RETRY_SECONDS) from refused
