"""Sends and asks what the bindings give, so that each call carries its measured gas."""

from typing import TypeVar

from quorate_contracts.bindings.calls import Call, Query
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Receipt, Sender

T = TypeVar("T")


async def ask(client: ChainClient, query: Query[T], sender: Address | None = None) -> T:
    """The answer of a view function at the newest block."""
    return query.decode(await client.call(query.to, query.data, sender))


async def transact(sender: Sender, purpose: str, call: Call, deadline_seconds: float) -> Receipt:
    """Sends a call once per purpose and waits for it. Refused(CHAIN, reason) when it reverts."""
    return await sender.send(
        purpose, call.to, call.data, deadline_seconds=deadline_seconds, gas=call.gas
    )
