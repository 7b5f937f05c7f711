"""Reads a contract's logs backwards, the newest first, within what each node gives at once."""

from collections.abc import AsyncIterator

from quorate_contracts.artifact import CHAIN_RETRY_SECONDS, artifact
from quorate_contracts.deploy import Contracts
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.types import RawLog

RANGE_FIRST, RANGE_MAX = 5_000, 1 << 20  # blocks of one request


def topic_of(contract: str, event: type) -> Hash32:
    topics = artifact(contract).events
    return next(topic for topic, log in topics.items() if log.name == event.__name__)


async def newest_logs(
    client: ChainClient,
    contracts: Contracts,
    address: Address,
    topics: tuple[Hash32 | None, ...],
    oldest: BlockNumber,
    newest: BlockNumber,
) -> AsyncIterator[tuple[BlockNumber, list[RawLog]]]:
    """Yields the logs of one range of blocks after another, with the range's first block. The
    newest log of a range comes first. Raises Unavailable if the node does not answer.
    """
    start = max(oldest, contracts.deployment.start_block)
    top, size = newest, RANGE_FIRST
    while top >= start:
        first = BlockNumber(max(start, top - size + 1))
        try:
            logs = await client.logs(first, top, (address,), topics)
        except RpcFailure as failure:
            if size == 1:
                raise Unavailable(
                    f"the chain node does not give the logs of block {first}: {failure}",
                    CHAIN_RETRY_SECONDS,
                ) from failure
            size //= 2  # each node has its own limit
            continue
        yield first, list(reversed(logs))
        top, size = BlockNumber(first - 1), min(2 * size, RANGE_MAX)
