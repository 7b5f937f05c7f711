"""Logs as they happen, from the chain's own word only: no filters, block hashes kept, a walk
back when the chain changed its mind.
"""

import logging
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient, Topics
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.types import BlockHead, RawLog

RANGE_MAX = 2000
TRAIL_MAX = 64
NEW_BLOCKS = (
    8  # so many are read one by one: of several nodes behind one URL some may not have them yet
)
GENESIS = BlockNumber(0)

_logger = logging.getLogger(__name__)


class Checkpoint(Struct, frozen=True):
    """A block up to which everything has been delivered."""

    number: BlockNumber
    hash: Hash32


class Cursor(Struct, frozen=True):
    """Where to go on: checkpoints, oldest first, at most `TRAIL_MAX`. The consumer stores it
    together with what it made of the logs.
    """

    trail: tuple[Checkpoint, ...] = ()

    def then(self, checkpoint: Checkpoint) -> "Cursor":
        """With one more checkpoint."""
        return Cursor((*self.trail, checkpoint)[-TRAIL_MAX:])


class LogBatch(Struct, frozen=True):
    """The logs of blocks `first` to `last.number`, in order (often none), all at depth k or
    more.
    """

    first: BlockNumber
    last: BlockHead
    head: BlockHead  # the newest block then: "now" of chain deadlines
    logs: tuple[RawLog, ...]
    cursor: Cursor  # store it once the batch is dealt with


class Reorganised(Struct, frozen=True):
    """The chain changed its mind: forget everything from blocks above `kept`; those blocks' logs
    are delivered anew.
    """

    kept: BlockNumber | None  # None when nothing that was delivered is left
    cursor: Cursor


class LogFollower:
    """Delivers each log of some contracts once per history. `start` is the first block when the
    cursor is empty.
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

    async def batches(self) -> AsyncIterator[LogBatch | Reorganised]:
        """Forever: batches as blocks come, and notices of reorganisations. A node that is away
        is waited for; cancel to stop.
        """
        while True:
            pause = self._poll
            try:
                step = await self.step()
            except Unavailable as error:
                # The chain goes on without us; nothing is lost, the same range is read again.
                _logger.warning("logs wait for the chain: %s", error)
                pause, step = max(pause, error.retry_after), None
            if step is None:
                await self._clock.sleep(pause)
            else:
                yield step

    async def step(self) -> LogBatch | Reorganised | None:
        """The next batch or notice; None when there is nothing new. Unavailable when the node is
        away or changes its mind meanwhile.
        """
        notice = await self._walk_back()
        if notice is not None:
            self._cursor = notice.cursor
            return notice
        head = await self._client.head()
        first = BlockNumber(
            self._cursor.trail[-1].number + 1 if self._cursor.trail else self._start
        )
        top = min(head.number - self._depth + 1, first + self._range - 1)
        if top < first:
            return None
        batch = await self._read(first, BlockNumber(top), head)
        if batch is not None:
            self._cursor = batch.cursor
        return batch

    async def _walk_back(self) -> Reorganised | None:
        """None when the newest checkpoint is still canonical; else the newest one that is.

        Unavailable when there is no block of that number: the node is behind (another one was
        asked before, or it is still fetching the chain), and takes nothing back.
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
        """Logs of a range; None when the range has to be smaller, or when the chain changed
        while it was read.
        """
        before = await self._client.block(top)
        try:
            logs = await self._logs(first, top, head.number)
        except RpcFailure as failure:
            if self._range == 1:
                raise Unavailable(
                    f"the chain node does not give the logs of block {first}: {failure}"
                ) from failure
            # Nodes bound range and result size, each differently: half of it is asked next.
            self._range = max(1, min(self._range, top - first + 1) // 2)
            return None
        after = await self._client.block(top)
        still = not self._cursor.trail or await self._is_canonical(self._cursor.trail[-1])
        if before is None or after is None or before.hash != after.hash or not still:
            return None  # the next step walks back if need be
        self._range = min(RANGE_MAX, self._range * 2)
        return LogBatch(first, after, head, logs, self._cursor.then(Checkpoint(top, after.hash)))

    async def _logs(
        self, first: BlockNumber, top: BlockNumber, head: BlockNumber
    ) -> tuple[RawLog, ...]:
        """Those of a range. The newest blocks are asked for one by one, by their hash."""
        old = BlockNumber(min(top, head - NEW_BLOCKS))
        found: list[RawLog] = []
        if old >= first:
            found += await self._client.logs(first, old, self._addresses, self._topics)
        for number in range(max(first, old + 1), top + 1):
            block = await self._client.block(BlockNumber(number))
            if block is None:
                raise Unavailable(
                    f"the chain node does not have block {number} yet, of which it told"
                )
            found += await self._client.logs(
                block.number, block.number, self._addresses, self._topics, only=block.hash
            )
        return tuple(found)
