"""Reading the chain, typed. Every method raises Unavailable when the node is away or has trouble
of its own; what a contract refuses is Refused(CHAIN, reason).
"""

from collections.abc import Sequence
from dataclasses import replace

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.node_errors import Answer, classify
from quorate_runtime.chain.revert import is_revert, revert_reason
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

BlockId = BlockNumber | Hash32 | str
"""A height, a hash, or "latest", "pending"."""

CALL_RETRY_SECONDS = 2.0
FEE_BLOCKS = 20  # whose tips bound ours
GWEI = 10**9
FEE_CAP_GWEI = 500  # unless somebody says otherwise
TIP_LEAST_WEI = 3 * GWEI  # where blocks are empty, or a node does not tell what was paid in them

Topics = Sequence[Hash32 | Sequence[Hash32] | None]
"""By place: one value, several alternatives, or None for anything."""


class ChainClient:
    """What the programs ask a node. `fee_cap_wei` is the most that they pay per gas."""

    def __init__(self, rpc: Rpc, fee_cap_wei: int = FEE_CAP_GWEI * GWEI) -> None:
        self.rpc, self.fee_cap_wei = rpc, fee_cap_wei

    async def chain_id(self) -> int:
        """The chain's id."""
        return integer(await self._read("eth_chainId"))

    async def block(self, which: BlockId = "latest") -> BlockHead | None:
        """A header; None when there is no such block."""
        method = "eth_getBlockByHash" if isinstance(which, bytes) else "eth_getBlockByNumber"
        tree = await self._read(method, block_id(which), False)
        return None if tree is None else head_from(tree)

    async def head(self) -> BlockHead:
        """The newest header."""
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
        """Logs of a range of blocks (both ends included), in order, with their time. RpcFailure
        when the node finds the range too large.

        `only` names the one block asked for by its hash: a node that does not have it says so,
        where a range that reaches beyond a node's newest block is answered with what it has.
        """
        query: dict[str, Json] = {"address": [_hex(address) for address in addresses]}
        query |= (
            {"blockHash": _hex(only)} if only else {"fromBlock": hex(first), "toBlock": hex(last)}
        )
        if topics:
            query["topics"] = [_topic(place) for place in topics]
        trees = await self.rpc.read("eth_getLogs", query)
        if not isinstance(trees, list):
            raise Unavailable("the chain node sent no list of logs")
        found = [log_from(tree, 0) for tree in trees]
        if not all(first <= log.block <= last and log.address in addresses for log in found):
            # Every block named costs a question about its time, and nobody follows these contracts.
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
        """A receipt; None while the transaction is not in a block."""
        tree = await self._read("eth_getTransactionReceipt", _hex(transaction))
        if tree is None or member(tree, "blockNumber") is None:
            return None
        head = await self.block(Hash32(octets(member(tree, "blockHash"), 32)))
        return receipt_from(tree, head.time if head else 0)

    async def call(
        self,
        to: Address,
        data: bytes,
        sender: Address | None = None,
        block: BlockId = "latest",
        value: int = 0,
    ) -> bytes:
        """eth_call. Refused(CHAIN, reason) when the contract reverts."""
        try:
            return octets(
                await self.rpc.read(
                    "eth_call", call_object(to, data, sender, value), block_id(block)
                )
            )
        except RpcFailure as failure:
            raise _refused(failure) from failure

    async def estimate_gas(
        self, to: Address | None, data: bytes, sender: Address, value: int = 0
    ) -> int:
        """Gas a transaction needs. Refused(CHAIN, reason) when it would revert."""
        try:
            return integer(
                await self.rpc.read("eth_estimateGas", call_object(to, data, sender, value))
            )
        except RpcFailure as failure:
            raise _refused(failure) from failure

    async def balance(self, account: Address, block: BlockId = "latest") -> int:
        """Coins of an account, wei."""
        return integer(await self._read("eth_getBalance", _hex(account), block_id(block)))

    async def nonce(self, account: Address, block: BlockId = "latest") -> int:
        """How many transactions of an account have been mined at a block."""
        return integer(await self._read("eth_getTransactionCount", _hex(account), block_id(block)))

    async def code(self, account: Address, block: BlockId = "latest") -> bytes:
        """A contract's code; b"" where there is none."""
        return octets(await self._read("eth_getCode", _hex(account), block_id(block)))

    async def fees(self) -> Fees:
        """Base fee of the newest block, and the tip the node advises, as far as others pay as
        much: the tip is paid whole, where of the fee only what the chain asks for is.
        """
        head = await self.head()
        advised = integer(await self._read("eth_maxPriorityFeePerGas"))
        return Fees(head.base_fee_wei, min(advised, max(TIP_LEAST_WEI, await self._tip_paid())))

    async def _tip_paid(self) -> int:
        """The highest of the middling tips of recent blocks."""
        try:
            tree = await self.rpc.read("eth_feeHistory", hex(FEE_BLOCKS), "latest", [50])
        except RpcFailure:
            return 0  # not re-raised: some nodes have no such method
        rows = member(tree, "reward")
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 1 for row in rows[:FEE_BLOCKS]
        ):
            return 0
        return max((integer(row[0]) for row in rows[:FEE_BLOCKS]), default=0)

    async def send_raw(self, raw: bytes) -> Hash32:
        """Hands over a signed transaction: one try. RpcFailure with the node's words when it
        refuses.
        """
        return Hash32(octets(await self.rpc.request("eth_sendRawTransaction", _hex(raw)), 32))

    async def _read(self, method: str, *params: Json) -> Json:
        try:
            return await self.rpc.read(method, *params)
        except RpcFailure as failure:
            # Nothing here depends on a contract: a node that refuses a plain read is out of order
            # or behind.
            raise Unavailable(f"chain node, {method}: {failure}") from failure

    async def _times(self, numbers: set[BlockNumber]) -> dict[BlockNumber, int]:
        found: dict[BlockNumber, int] = {}
        for number in sorted(numbers):
            head = await self.block(number)
            if head is None:
                raise Unavailable(f"block {number} vanished while its logs were read")
            found[number] = head.time
        return found


def block_id(which: BlockId) -> str:
    """A block's name as the API writes it."""
    if isinstance(which, str):
        return which
    return _hex(which) if isinstance(which, bytes) else hex(which)


def call_object(to: Address | None, data: bytes, sender: Address | None, value: int) -> Json:
    """A call as the API writes it."""
    form = {
        "to": _hex(to) if to else None,
        "from": _hex(sender) if sender else None,
        "input": _hex(data),
        "value": hex(value),
    }
    return {name: text for name, text in form.items() if text is not None}


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


def _topic(place: Hash32 | Sequence[Hash32] | None) -> Json:
    if place is None or isinstance(place, bytes):
        return place if place is None else _hex(place)
    return [_hex(item) for item in place]


def _refused(failure: RpcFailure) -> Refused | Unavailable:
    """What the contract refuses is refused. A node that is behind, or was asked too often, has
    said nothing about the contract.
    """
    if is_revert(failure):
        return Refused(Code.CHAIN, revert_reason(failure.data, failure.message))
    if classify(failure.message) in (Answer.NEVER, Answer.UNFUNDED):
        return Refused(Code.CHAIN, failure.message)
    return Unavailable(f"the chain node: {failure}", CALL_RETRY_SECONDS)
