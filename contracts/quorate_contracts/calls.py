"""Asks the queries and sends the calls that the typed contracts build, with their measured gas."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS
from quorate_contracts.generated.contract_calls import Call, Query
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address

if TYPE_CHECKING:
    from quorate_runtime.chain.client import BlockId, ChainClient
    from quorate_runtime.chain.sender import Sender
    from quorate_runtime.chain.types import Receipt

T = TypeVar("T")
SEND_SECONDS = 120.0  # how long a caller waits for a transaction; it may call again and wait on


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction of an account, and the text that names it (see `transact`)."""

    purpose: str
    call: Call


async def ask(client: "ChainClient", query: Query[T], block: "BlockId" = "latest") -> T:
    return query.decode(await client.call(query.to, query.data, block=block))


async def view(client: "ChainClient", query: Query[T], block: "BlockId" = "latest") -> T:
    """Asks a function that never reverts. Raises Unavailable if the chain node says that it
    reverts: the node is faulty, and no caller must take that for a refused transaction.
    """
    try:
        return await ask(client, query, block)
    except Refused as refused:
        raise Unavailable(f"the chain node: {refused}", CHAIN_RETRY_SECONDS) from refused


async def simulate(client: "ChainClient", call: Call, sender: Address | None = None) -> None:
    """Tries a call without a transaction. Raises Refused(CHAIN, reason) if it would revert now."""
    await client.call(call.to, call.data, sender)


async def transact(
    sender: "Sender", purpose: str, call: Call, wei: int = 0, seconds: float = SEND_SECONDS
) -> "Receipt":
    """Sends a call, and coins with it, and waits for its receipt, as `Sender.send` does. `purpose`
    is the text that names the transaction: a second call with it sends nothing new.
    """
    return await sender.send(
        purpose, call.to, call.data, value=wei, gas=call.gas, deadline_seconds=seconds
    )
