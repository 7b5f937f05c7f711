"""Sends the calls and asks the queries that the typed contracts build.

They give each call its measured gas.
"""

from dataclasses import dataclass
from typing import TypeVar

from quorate_contracts.generated.contract_calls import Call, Query
from quorate_protocol.units import BlockNumber
from quorate_runtime.chain import ChainClient, Receipt, Sender
from quorate_runtime.chain.client import BlockId
from quorate_runtime.chain.types import BlockHead

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction of the owner. `text` is for people who sign it elsewhere."""

    purpose: str
    call: Call
    text: str


async def ask(client: ChainClient, query: Query[T], block: BlockId = "latest") -> T:
    """Returns the answer of a contract's view function, at the newest block unless told."""
    return query.decode(await client.call(query.to, query.data, block=block))


def final_block(head: BlockHead, depth: int) -> BlockNumber:
    """Returns the newest block that the chain does not drop any more; the newest has depth 1."""
    return BlockNumber(max(0, head.number - depth + 1))


async def transact(sender: Sender, purpose: str, call: Call, deadline_seconds: float) -> Receipt:
    """Sends a call and waits for its receipt.

    `purpose` is the text that names the transaction: a second call with it sends nothing new.
    Raises Refused(CHAIN, reason) if the call reverts.
    """
    return await sender.send(
        purpose, call.to, call.data, deadline_seconds=deadline_seconds, gas=call.gas
    )
