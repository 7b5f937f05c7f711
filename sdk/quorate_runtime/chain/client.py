"""Typed reads of the chain, through web3.py.

Every method raises Unavailable if the node does not answer, is out of order, or sends nonsense. It
raises Refused(CHAIN, reason) if a contract refuses the call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_protocol.values import replace
from quorate_runtime.chain.fee_bids import GWEI, TIP_LEAST_WEI, first_bid
from quorate_runtime.chain.node_errors import Answer, classify, is_revert, revert_reason
from quorate_runtime.chain.rpc import Rpc, RpcFailure
from quorate_runtime.chain.types import (
    BlockHead,
    Fees,
    Json,
    RawLog,
    Receipt,
    head_from,
    integer,
    log_from,
    member,
    octets,
    receipt_from,
)

if TYPE_CHECKING:
    from web3 import AsyncWeb3

    from quorate_runtime.chain.web3_provider import BoundedProvider

T = TypeVar("T")
BlockId = BlockNumber | Hash32 | str
"""A height, a hash, or "latest" or "pending"."""

CALL_RETRY_SECONDS = 2.0
FEE_BLOCKS = 20  # the highest tip among this many recent blocks bounds ours
FEE_CAP_GWEI = 500  # the most per gas, unless the owner sets another cap

Topics = Sequence[Hash32 | Sequence[Hash32] | None]
"""One entry a topic: a value, several alternatives, or None for any value."""


class ChainClient:
    """Reads from one chain node. `fee_cap_wei` is the most that the programs pay per gas."""

    is_compared = False  # whether a second node must say the same

    def __init__(self, rpc: Rpc, fee_cap_wei: int = FEE_CAP_GWEI * GWEI) -> None:
        self.rpc, self.fee_cap_wei = rpc, fee_cap_wei
        self._w3: AsyncWeb3[BoundedProvider] | None = None

    async def web3(self) -> "AsyncWeb3[BoundedProvider]":
        """Returns the AsyncWeb3 that this client reads through. The first call imports web3."""
        if self._w3 is None:
            # The import takes more than a second. In a thread, other tasks go on meanwhile.
            module = await asyncio.to_thread(_import_provider)
            self._w3 = self._w3 or module.make_web3(self.rpc, raise_failures=True)
        return self._w3

    async def chain_id(self) -> int:
        return integer(await self._read("eth_chainId", lambda w3: w3.eth.chain_id))

    async def block(self, which: BlockId = "latest") -> BlockHead | None:
        tree = await self._read("eth_getBlock", lambda w3: w3.eth.get_block(_block_id(which)))
        return None if tree is None else head_from(tree)

    async def head(self) -> BlockHead:
        found = await self.block("latest")
        if found is None:
            raise Unavailable("the chain node has no block")
        return found

    async def logs(
        self,
        first: BlockNumber,
        last: BlockNumber,
        addresses: Sequence[Address],
        topics: Topics = (),
        *,
        only: Hash32 | None = None,
    ) -> tuple[RawLog, ...]:
        """Returns the logs of a range of blocks (both ends included), in order, with their time.

        `only` names a single block by its hash. A node that lacks this block refuses, while it
        answers a range beyond its newest block with the logs that it has. Raises RpcFailure if the
        node finds the range too large.
        """
        query: dict[str, Json] = {"address": [_text(address) for address in addresses]}
        query |= (
            {"blockHash": _hex(only)} if only else {"fromBlock": hex(first), "toBlock": hex(last)}
        )
        if topics:
            query["topics"] = [_topic(place) for place in topics]
        trees = await self._ask("eth_getLogs", lambda w3: w3.eth.get_logs(_as_any(query)))
        if not isinstance(trees, list | tuple):
            raise Unavailable("the chain node sent no list of logs")
        found = [log_from(tree, 0) for tree in trees]
        if not all(first <= log.block <= last and log.address in addresses for log in found):
            # Each named block costs a request for its time, and nothing limits what such logs say.
            raise Unavailable(
                "the chain node sent logs of other blocks or contracts than it was asked for"
            )
        times = await self._times(
            {
                log.block
                for log, tree in zip(found, trees, strict=True)
                if not member(tree, "blockTimestamp")
            }
        )
        timed = (replace(log, block_time=times.get(log.block, log.block_time)) for log in found)
        return tuple(sorted(timed, key=lambda log: (log.block, log.log_index)))

    async def receipt(self, transaction: Hash32) -> Receipt | None:
        tree = await self._read(
            "eth_getTransactionReceipt",
            lambda w3: w3.eth.get_transaction_receipt(_as_any(transaction)),
        )
        if tree is None or member(tree, "blockNumber") is None:
            return None
        head = await self.block(Hash32(octets(member(tree, "blockHash"), 32)))
        return receipt_from(tree, head.time if head else 0)

    async def has_transaction(self, block: Hash32, transaction: Hash32) -> bool:
        tree = await self._read("eth_getBlock", lambda w3: w3.eth.get_block(_block_id(block)))
        found = None if tree is None else member(tree, "transactions")
        return isinstance(found, list | tuple) and transaction in found

    async def call_data(self, transaction: Hash32) -> bytes:
        tree = await self._read(
            "eth_getTransactionByHash", lambda w3: w3.eth.get_transaction(_as_any(transaction))
        )
        return octets(member(tree, "input"))

    async def call(
        self,
        to: Address | None,
        data: bytes,
        sender: Address | None = None,
        block: BlockId = "latest",
        value: int = 0,
    ) -> bytes:
        """Calls a contract, or runs code where `to` is None, without a transaction. Raises
        Refused(CHAIN, reason) if it reverts.
        """
        asked = _call_object(to, data, sender, value)
        try:
            return octets(
                await self._ask("eth_call", lambda w3: w3.eth.call(asked, _block_id(block)))
            )
        except RpcFailure as failure:
            raise _refused(failure) from failure

    async def estimate_gas(
        self, to: Address | None, data: bytes, sender: Address, value: int = 0
    ) -> int:
        """Raises Refused(CHAIN, reason) if it would revert."""
        asked = _call_object(to, data, sender, value)
        try:
            return integer(
                await self._ask("eth_estimateGas", lambda w3: w3.eth.estimate_gas(asked))
            )
        except RpcFailure as failure:
            raise _refused(failure) from failure

    async def balance(self, account: Address, block: BlockId = "latest") -> int:
        """Returns the coins of an account, in wei."""
        return integer(
            await self._read(
                "eth_getBalance", lambda w3: w3.eth.get_balance(_as_any(account), _block_id(block))
            )
        )

    async def nonce(self, account: Address, block: BlockId = "latest") -> int:
        """Returns how many transactions of an account are mined at a block."""
        return integer(
            await self._read(
                "eth_getTransactionCount",
                lambda w3: w3.eth.get_transaction_count(_as_any(account), _block_id(block)),
            )
        )

    async def code(self, account: Address, block: BlockId = "latest") -> bytes:
        return octets(
            await self._read(
                "eth_getCode", lambda w3: w3.eth.get_code(_as_any(account), _block_id(block))
            )
        )

    async def fees(self) -> Fees:
        """Returns the base fee of the newest block, a tip, and the usual base fee.

        The tip is what the node advises, but at most what recent blocks were paid. (At least
        `TIP_LEAST_WEI` is allowed.) A transaction pays its tip in full, whatever the base fee is.
        """
        head = await self.head()
        advised = integer(
            await self._read("eth_maxPriorityFeePerGas", lambda w3: w3.eth.max_priority_fee)
        )
        paid, usual = await self._recent_prices(head)
        return Fees(head.base_fee_wei, min(advised, max(TIP_LEAST_WEI, paid)), usual)

    async def gas_cost(self, gas: int) -> int:
        """Returns the wei that a transaction with so much gas offers now."""
        return gas * first_bid(await self.fees(), self.fee_cap_wei).fee_max

    async def _recent_prices(self, head: BlockHead) -> tuple[int, int]:
        """Returns the highest median tip among recent blocks, and the median of their base fees.
        The newest base fee replaces a higher median. If the node does not tell, the tip is 0.
        """
        try:
            tree = await self._ask(
                "eth_feeHistory",
                lambda w3: w3.eth.fee_history(FEE_BLOCKS, _as_any(head.number), [50]),
            )
        except (RpcFailure, Unavailable):
            # Some nodes have no such method, or answer nonsense to it.
            return 0, head.base_fee_wei
        rows, fees = member(tree, "reward"), member(tree, "baseFeePerGas")
        if not isinstance(rows, list | tuple) or not isinstance(fees, list | tuple):
            return 0, head.base_fee_wei
        newest = rows[:FEE_BLOCKS]
        if not fees or not all(isinstance(row, list | tuple) and len(row) == 1 for row in newest):
            return 0, head.base_fee_wei
        known = sorted(integer(fee) for fee in fees[:FEE_BLOCKS])
        usual = min(known[len(known) // 2], head.base_fee_wei)
        return max((integer(row[0]) for row in newest), default=0), usual

    async def send_raw(self, raw: bytes) -> Hash32:
        """Hands a signed transaction to the node, once. Raises RpcFailure if the node refuses
        it.
        """
        return Hash32(
            octets(
                await self._ask(
                    "eth_sendRawTransaction", lambda w3: w3.eth.send_raw_transaction(raw)
                ),
                32,
            )
        )

    async def _read(
        self, method: str, request: Callable[["AsyncWeb3[BoundedProvider]"], Awaitable[Json]]
    ) -> Json:
        try:
            return await self._ask(method, request)
        except RpcFailure as failure:
            # No contract is asked here: a node that refuses a plain read is out of order or behind.
            raise Unavailable(f"chain node, {method}: {failure}") from failure

    async def _ask(
        self, method: str, request: Callable[["AsyncWeb3[BoundedProvider]"], Awaitable[Json]]
    ) -> Json:
        """Returns what web3 makes of the node's answer, or None for a block or receipt that it
        lacks.

        web3's formatters raise exceptions of any kind on nonsense. All of them become Unavailable.
        """
        w3 = await self.web3()
        from web3.exceptions import BlockNotFound, ExtraDataLengthError, TransactionNotFound

        try:
            try:
                return await request(w3)
            except ExtraDataLengthError:
                # Blocks of a proof-of-authority chain: asked again with web3's middleware for them.
                provider = _import_provider()
                provider.accept_long_extra_data(w3)
                return await request(w3)
        except (Unavailable, RpcFailure):
            raise
        except (BlockNotFound, TransactionNotFound):
            return None
        except Exception as error:  # see above
            kind = type(error).__name__
            raise Unavailable(
                f"chain node, {method}: nonsense ({kind}: {str(error)[:200]})"
            ) from error

    async def _times(self, numbers: set[BlockNumber]) -> dict[BlockNumber, int]:
        found: dict[BlockNumber, int] = {}
        for number in sorted(numbers):
            head = await self.block(number)
            if head is None:
                raise Unavailable(f"block {number} vanished while its logs were read")
            found[number] = head.time
        return found


def _import_provider() -> ModuleType:
    """Returns our web3 provider's module. The first call takes a second to import web3."""
    return import_module("quorate_runtime.chain.web3_provider")


def _as_any(value: Any) -> Any:
    """web3 types addresses, hashes and filters more narrowly than it accepts them."""
    return value


def _block_id(which: BlockId) -> Any:
    return _hex(which) if isinstance(which, bytes) else which


def _call_object(to: Address | None, data: bytes, sender: Address | None, value: int) -> Any:
    form = {
        "to": _text(to) if to else None,
        "from": _text(sender) if sender else None,
        "data": _hex(data),
        "value": value,
    }
    return {name: member for name, member in form.items() if member is not None}


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


def _text(address: Address) -> str:
    """Returns an address with the checksum in its letters that web3 demands."""
    from eth_utils.address import to_checksum_address

    return to_checksum_address(address)


def _topic(place: Hash32 | Sequence[Hash32] | None) -> Json:
    if place is None or isinstance(place, bytes):
        return place if place is None else _hex(place)
    return [_hex(item) for item in place]


def _refused(failure: RpcFailure) -> Refused | Unavailable:
    """Returns the error for a node's refusal of a call.

    It is Refused if the contract refused. Otherwise it is Unavailable: a node that is behind, or
    was asked too often, has said nothing about the contract.
    """
    if is_revert(failure):
        return Refused(Code.CHAIN, revert_reason(failure.data, failure.message))
    if classify(failure.message) in (Answer.NEVER, Answer.UNFUNDED):
        return Refused(Code.CHAIN, failure.message)
    return Unavailable(f"the chain node: {failure}", CALL_RETRY_SECONDS)
