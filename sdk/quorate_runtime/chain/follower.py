"""Follows the logs of contracts through reorganisations (when the chain replaces its newest
blocks).

It uses no filters. It keeps the hashes of the blocks that it has read, and walks back when the
chain has replaced them.
"""

import logging
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient, Topics
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.types import BlockHead, RawLog

RANGE_MAX = 2000
TRAIL_MAX = 64
NEW_BLOCKS = 8  # read one by one, because some of the nodes behind one URL may not have them yet
GENESIS = BlockNumber(0)

log = logging.getLogger(__name__)


async def block_at(client: ChainClient, head: BlockHead, time: int) -> BlockNumber:
    """Returns the first block at this time or later, `head` at the latest.

    Chains have blocks of 12 seconds or of a quarter of one, so times say how far to look back. It
    asks for at most `NUMBER_BITS` headers.
    """
    low, high = 0, int(head.number)
    while low < high:
        middle = (low + high) // 2
        block = await client.block(BlockNumber(middle))
        if block is None:
            raise Unavailable(f"the chain node has no block {middle}, below its newest")
        low, high = (low, middle) if block.time >= time else (middle + 1, high)
    return BlockNumber(high)


class Checkpoint(Struct, frozen=True):
    """A block up to which all logs have been delivered."""

    number: BlockNumber
    hash: Hash32


class Cursor(Struct, frozen=True):
    """Where to continue: checkpoints, oldest first, at most `TRAIL_MAX`. The consumer stores it
    together with what it made of the logs.
    """

    trail: tuple[Checkpoint, ...] = ()

    def then(self, checkpoint: Checkpoint) -> "Cursor":
        return Cursor((*self.trail, checkpoint)[-TRAIL_MAX:])


class LogBatch(Struct, frozen=True):
    """The logs of blocks `first` to `last.number`, in order, all at depth k or more. Often there
    are none.
    """

    first: BlockNumber
    last: BlockHead
    head: BlockHead  # the newest block: its time is compared with deadlines
    logs: tuple[RawLog, ...]
    cursor: Cursor  # store it when the batch is processed


class Reorganised(Struct, frozen=True):
    """The chain replaced blocks. The consumer must forget all logs of blocks above `kept`. New logs
    of them follow.
    """

    kept: BlockNumber | None  # None when all delivered blocks were replaced
    cursor: Cursor


class LogFollower:
    """Delivers each log of some contracts once per history of the chain. If the cursor is empty, it
    begins at block `start`.
    """

    def __init__(
        self,
        client: ChainClient,
        clock: Clock,
        addresses: Sequence[Address],
        topics: Topics = (),
        *,
        cursor: Cursor | None = None,
        start: BlockNumber = GENESIS,
        depth: int = 1,
        poll_seconds: float = 0.5,
    ) -> None:
        assert depth >= 1, "a block at the head has depth 1"
        self._client = client
        self._clock = clock
        self._addresses = tuple(addresses)
        self._topics = topics
        self._cursor = cursor or Cursor()
        self._start = start
        self._depth = depth
        self._poll = poll_seconds
        self._range = RANGE_MAX
        self._read_to: Hash32 | None = None  # head with which everything had been delivered
        self._has_more = True  # whether the next step is likely to find something

    async def batches(self) -> AsyncIterator[LogBatch | Reorganised]:
        """Yields batches as blocks appear, and notices of reorganisations, until cancelled. While
        the node does not answer, it waits.
        """
        while True:
            pause = self._poll
            try:
                step = await self.step()
            except Unavailable as error:
                # Nothing is lost, because the same range is read again.
                log.warning("logs wait for the chain: %s", error)
                pause, step = max(pause, error.retry_after), None
            if step is not None:
                yield step
            if step is None or not self._has_more:
                await self._clock.sleep(pause)

    async def step(self) -> LogBatch | Reorganised | None:
        """Returns the next batch or notice, or None if there is nothing new. Raises Unavailable if
        the node does not answer, or the chain replaces blocks during the reading.
        """
        head = await self._client.head()
        self._has_more = head.hash != self._read_to
        if not self._has_more:
            return None
        batch = await self._append(head)
        if batch is None:
            notice = await self._walk_back()
            if notice is not None:
                self._cursor = notice.cursor
                return notice
            batch = await self._next_range(head)
        if batch is None:
            return None
        self._cursor = batch.cursor
        return batch

    async def _append(self, head: BlockHead) -> LogBatch | None:
        """Returns the logs of the only new block, or None if that is not what happened.

        Its parent's hash proves that nothing was replaced, and logs asked for by hash are of that
        block alone.
        """
        newest = self._cursor.trail[-1] if self._cursor.trail else None
        if newest is None or head.number - self._depth != newest.number:
            return None
        top = head
        if self._depth > 1:
            found = await self._client.block(BlockNumber(newest.number + 1))
            top = head if found is None else found
        if top.parent_hash != newest.hash:
            return None
        try:
            logs = await self._client.logs(
                top.number, top.number, self._addresses, self._topics, only=top.hash
            )
        except RpcFailure:
            return None  # the reading of a range knows what to do
        self._read_to, self._has_more = head.hash, False
        cursor = self._cursor.then(Checkpoint(top.number, top.hash))
        return LogBatch(top.number, top, head, logs, cursor)

    async def _next_range(self, head: BlockHead) -> LogBatch | None:
        first = BlockNumber(
            self._cursor.trail[-1].number + 1 if self._cursor.trail else self._start
        )
        top = min(head.number - self._depth + 1, first + self._range - 1)
        if top < first:
            self._read_to = head.hash
            return None
        return await self._read(first, BlockNumber(top), head)

    async def _walk_back(self) -> Reorganised | None:
        """Returns a notice with the newest checkpoint that is still in the chain.

        Returns None if that is the newest checkpoint of all. Raises Unavailable if there is no
        block of that number. Then the node is behind: another node answered before, or it is still
        fetching the chain. Nothing was replaced.
        """
        trail = self._cursor.trail
        if trail and await self._client.block(trail[-1].number) is None:
            raise Unavailable(
                f"the chain node does not have block {trail[-1].number} yet, which was read before"
            )
        for kept in range(len(trail), 0, -1):
            if await self._is_canonical(trail[kept - 1]):
                return (
                    None
                    if kept == len(trail)
                    else Reorganised(trail[kept - 1].number, Cursor(trail[:kept]))
                )
        return Reorganised(None, Cursor()) if trail else None

    async def _is_canonical(self, checkpoint: Checkpoint) -> bool:
        block = await self._client.block(checkpoint.number)
        return block is not None and block.hash == checkpoint.hash

    async def _read(self, first: BlockNumber, top: BlockNumber, head: BlockHead) -> LogBatch | None:
        """Returns the logs of a range. Returns None if the range must be smaller, or if the chain
        replaced blocks during the reading.
        """
        before = await self._client.block(top)
        try:
            logs = await self._logs(first, top, head.number)
        except RpcFailure as failure:
            if self._range == 1:
                raise Unavailable(
                    f"the chain node does not give the logs of block {first}: {failure}"
                ) from failure
            # Each node has its own limits of range and result size. Half of the range is next.
            self._range = max(1, min(self._range, top - first + 1) // 2)
            return None
        after = await self._client.block(top)
        still = not self._cursor.trail or await self._is_canonical(self._cursor.trail[-1])
        if before is None or after is None or before.hash != after.hash or not still:
            return None  # the next step walks back if necessary
        self._range = min(RANGE_MAX, self._range * 2)
        return LogBatch(first, after, head, logs, self._cursor.then(Checkpoint(top, after.hash)))

    async def _logs(
        self, first: BlockNumber, top: BlockNumber, head: BlockNumber
    ) -> tuple[RawLog, ...]:
        """Returns the logs of a range. It asks for the newest blocks one by one, by their hash."""
        old = BlockNumber(min(top, head - NEW_BLOCKS))
        found: list[RawLog] = []
        if old >= first:
            found += await self._client.logs(first, old, self._addresses, self._topics)
        for number in range(max(first, old + 1), top + 1):
            block = await self._client.block(BlockNumber(number))
            if block is None:
                raise Unavailable(
                    f"the chain node does not have block {number} yet, which it named before"
                )
            found += await self._client.logs(
                block.number, block.number, self._addresses, self._topics, only=block.hash
            )
        return tuple(found)
