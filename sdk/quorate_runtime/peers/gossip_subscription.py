"""The reader's side of a gossip subscription: a bounded queue of accepted messages."""

import asyncio
import logging
from collections import deque

from quorate_protocol.messages.ports import GOSSIP_BYTES_MAX, Validate, Verdict
from quorate_protocol.refusals import Code, Refused

QUEUE_MAX = 1024  # messages that the reader has not taken yet

log = logging.getLogger(__name__)


def check_size(data: bytes) -> None:
    """Refused(OVERSIZE) for a message that is too large to publish."""
    if len(data) > GOSSIP_BYTES_MAX:
        raise Refused(
            Code.OVERSIZE, f"a gossip message of {len(data)} bytes; at most {GOSSIP_BYTES_MAX}"
        )


class GossipSubscription:
    """An asynchronous iterator over accepted messages."""

    def __init__(self, validate: Validate) -> None:
        self.dropped = 0  # messages that the reader was too slow for
        self._validate = validate
        self._queue: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._is_closed = False

    def judge(self, data: bytes, forwarder: str) -> Verdict:
        """The verdict on a message. It runs in the network's thread."""
        if len(data) > GOSSIP_BYTES_MAX:
            return Verdict.REJECT
        try:
            return self._validate(data, forwarder)
        except Exception:
            # It would end the host for a bug that a stranger found.
            log.exception("the validator of gossip failed")
            return Verdict.IGNORE

    def put(self, data: bytes) -> None:
        if self._is_closed:
            return
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:
                log.warning("%d gossip messages dropped: their reader is slow", self.dropped)
        self._queue.append(data)
        self._news.set()

    def close(self) -> None:
        """Ends the iterator, after the messages that are queued."""
        self._is_closed = True
        self._news.set()

    def __aiter__(self) -> "GossipSubscription":
        return self

    async def __anext__(self) -> bytes:
        while not self._queue:
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()
