"""Sends the calls and asks the queries that the contract bindings build.

The bindings give each call its measured gas.
"""

from typing import TypeVar

from quorate_contracts.bindings.calls import Call, Query
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Receipt, Sender

T = TypeVar("T")


async def ask(client: ChainClient, query: Query[T], sender: Address | None = None) -> T:
    """Returns the answer of a contract's view function at the newest block."""
    return query.decode(await client.call(query.to, query.data, sender))


async def transact(sender: Sender, purpose: str, call: Call, deadline_seconds: float) -> Receipt:
    """Sends a call and waits for its receipt.

    `purpose` is the text that names the transaction: a second call with it sends nothing new.
    Raises Refused(CHAIN, reason) if the call reverts.
    """
    return await sender.send(
        purpose, call.to, call.data, deadline_seconds=deadline_seconds, gas=call.gas
    )
