"""Reads the chain from two nodes, and returns only what both say.

One node can invent logs, receipts and prices, and leave logs out. Two nodes of different operators
that agree are believed. Both are read at the same block: the newest that both have.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import aiohttp

from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_protocol.values import replace
from quorate_runtime.chain.client import FEE_CAP_GWEI, BlockId, ChainClient, Topics
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.chain.node_errors import Answer, classify
from quorate_runtime.chain.rpc import Rpc, RpcFailure
from quorate_runtime.chain.types import BlockHead, Fees, RawLog, Receipt

T = TypeVar("T")


def chain_client(
    urls: Sequence[str],
    session: aiohttp.ClientSession,
    fee_cap_wei: int = FEE_CAP_GWEI * GWEI,
    answered: Callable[[], None] = lambda: None,
) -> ChainClient:
    """Returns a client of the one or two nodes that are named. An empty URL names none. `answered`
    is called at each answer of the first.
    """
    first, *others = [url for url in urls if url]
    client = ChainClient(Rpc(first, session, answered=answered), fee_cap_wei)
    for url in others:
        client = ComparedClient(client, ChainClient(Rpc(url, session), fee_cap_wei))
    return client


class ComparedClient(ChainClient):
    """Raises Unavailable, which names both nodes, where they disagree or one is silent."""

    is_compared = True

    def __init__(self, first: ChainClient, second: ChainClient) -> None:
        super().__init__(first.rpc, first.fee_cap_wei)
        self._nodes = first, second
        self._names = f"the chain nodes {first.rpc.url} and {second.rpc.url}"

    async def chain_id(self) -> int:
        return await self._agreed("the chain", lambda node: node.chain_id())

    async def head(self) -> BlockHead:
        """Returns the newest header that both nodes have."""
        heads = await self._both("the newest block", lambda node: node.head())
        first, second = (_value(head) for head in heads)
        if first == second:
            return first
        found = await self.block(min(first.number, second.number))
        if found is None:
            raise Unavailable(f"{self._names} disagree on the newest block")
        return found

    async def block(self, which: BlockId = "latest") -> BlockHead | None:
        if which == "latest":
            return await self.head()
        return await self._agreed(f"block {_shown(which)}", lambda node: node.block(which))

    async def logs(
        self,
        first: BlockNumber,
        last: BlockNumber,
        addresses: Sequence[Address],
        topics: Topics = (),
        *,
        only: Hash32 | None = None,
    ) -> tuple[RawLog, ...]:
        return await self._agreed(
            f"the logs of blocks {first} to {last}",
            lambda node: node.logs(first, last, addresses, topics, only=only),
        )

    async def receipt(self, transaction: Hash32) -> Receipt | None:
        return await self._agreed(
            f"the receipt of 0x{transaction.hex()}",
            lambda node: node.receipt(transaction),
            # Only some nodes send the output of a revert.
            lambda found: found and replace(found, revert_output=None),
        )

    async def has_transaction(self, block: Hash32, transaction: Hash32) -> bool:
        what = f"the transactions of block {_shown(block)}"
        return await self._agreed(what, lambda node: node.has_transaction(block, transaction))

    async def call(
        self,
        to: Address | None,
        data: bytes,
        sender: Address | None = None,
        block: BlockId = "latest",
        value: int = 0,
    ) -> bytes:
        at = await self._numbered(block)
        what = f"a call of 0x{(to or b'').hex()} at block {_shown(at)}"
        return await self._agreed(what, lambda node: node.call(to, data, sender, at, value))

    async def estimate_gas(
        self, to: Address | None, data: bytes, sender: Address, value: int = 0
    ) -> int:
        """Returns the higher estimate. Nodes measure differently, and unused gas costs nothing."""
        both = await self._both(
            "the gas of a transaction", lambda node: node.estimate_gas(to, data, sender, value)
        )
        return max(_value(gas) for gas in both)

    async def nonce(self, account: Address, block: BlockId = "latest") -> int:
        """Returns the count at a block that both have. Of "pending" it returns the lower one."""
        what = f"the transactions of 0x{account.hex()}"
        if block == "pending":
            both = await self._both(what, lambda node: node.nonce(account, block))
            return min(_value(count) for count in both)
        at = await self._numbered(block)
        return await self._agreed(what, lambda node: node.nonce(account, at))

    async def code(self, account: Address, block: BlockId = "latest") -> bytes:
        at = await self._numbered(block)
        return await self._agreed(
            f"the code of 0x{account.hex()}", lambda node: node.code(account, at)
        )

    async def fees(self) -> Fees:
        """Returns the agreed base fee, and the lower tip, since advice differs between nodes."""
        head = await self.head()
        fees = [_value(found) for found in await self._both("fees", lambda node: node.fees())]
        usual = min(head.base_fee_wei, *(each.usual_base_fee_wei for each in fees))
        return Fees(head.base_fee_wei, min(each.tip_wei for each in fees), usual)

    async def send_raw(self, raw: bytes) -> Hash32:
        """Hands a transaction to both nodes. One that takes it is enough. A refusal counts only if
        both refuse. So one node cannot have it signed again.
        """
        sent = await asyncio.gather(
            *(node.send_raw(raw) for node in self._nodes), return_exceptions=True
        )
        failures = [found for found in sent if isinstance(found, BaseException)]
        if len(failures) < len(sent):
            return next(found for found in sent if not isinstance(found, BaseException))
        raise min(failures, key=_certainty)

    async def _numbered(self, block: BlockId) -> BlockId:
        return (await self.head()).number if block == "latest" else block

    async def _agreed(
        self,
        what: str,
        ask: Callable[[ChainClient], Awaitable[T]],
        same: Callable[[T], object] = lambda found: found,
    ) -> T:
        one, other = await self._both(what, ask)
        if isinstance(one, Exception) and str(one) == str(other):
            raise one
        if isinstance(one, Exception) or isinstance(other, Exception) or same(one) != same(other):
            raise Unavailable(f"{self._names} disagree on {what}")
        return one

    async def _both(
        self, what: str, ask: Callable[[ChainClient], Awaitable[T]]
    ) -> list[T | Refused]:
        """Returns both answers. A contract's refusal is an answer too."""
        found = await asyncio.gather(*(ask(node) for node in self._nodes), return_exceptions=True)
        for item in found:
            if isinstance(item, Unavailable):
                told = f"{self._names} must agree on {what}, and one does not answer: {item}"
                raise Unavailable(told, item.retry_after) from item
            if isinstance(item, BaseException) and not isinstance(item, Refused):
                raise item
        return [
            item
            for item in found
            if isinstance(item, Refused) or not isinstance(item, BaseException)
        ]


def _value(found: T | Refused) -> T:
    if isinstance(found, Refused):
        raise found
    return found


def _certainty(failure: BaseException) -> int:
    """Orders failures: what a node may have taken comes before what it has refused."""
    if not isinstance(failure, RpcFailure):
        return 1
    return 0 if classify(failure.message) is Answer.KNOWN else 2


def _shown(block: BlockId) -> str:
    return "0x" + block.hex() if isinstance(block, bytes) else str(block)
