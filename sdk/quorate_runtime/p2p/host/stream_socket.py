"""The asyncio side of one libp2p stream: messages with a length before them.

A message is 4 bytes of length (big-endian) and at most MESSAGE_BYTES_MAX bytes. Both directions
hold a bounded number of bytes. A reader that falls behind slows the sender down; after 5 s of that
the sending libp2p resets the stream.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from quorate_protocol.units import Hash32
from quorate_runtime.peers.channel import MESSAGE_BYTES_MAX

LENGTH_BYTES = 4
FULL_BYTES = 4 << 20  # in each direction, beside the message that passes this bound
CLOSE_SECONDS = 3.0

Post = Callable[[Callable[[], object]], None]
"""Runs a quick function in the trio thread. ConnectionError if the thread has ended."""


@dataclass(frozen=True, slots=True)
class RemotePeer:
    """The other side of a stream, as the encrypted connection proved it."""

    peer_key: Hash32  # Ed25519 public key
    address: str  # the IP address from which it was seen; "" when unknown


class ByteGauge:
    """Counts bytes that one thread adds and another one takes."""

    def __init__(self, full_bytes: int = FULL_BYTES) -> None:
        self._full, self._held, self._lock = full_bytes, 0, threading.Lock()

    @property
    def is_full(self) -> bool:
        return self._held >= self._full

    def add(self, count: int) -> None:
        with self._lock:
            self._held += count

    def take(self, count: int) -> bool:
        """Counts bytes that left. True if the adding side may go on that had to wait."""
        with self._lock:
            was_full = self._held >= self._full
            self._held -= count
            return was_full and self._held < self._full


def split_messages(buffer: bytearray) -> list[bytes]:
    """Takes the complete messages from the front of the buffer. ValueError for one too long."""
    found, at = [], 0
    while len(buffer) - at >= LENGTH_BYTES:
        length = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
        if length > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX}")
        end = at + LENGTH_BYTES + length
        if len(buffer) < end:
            break
        found.append(bytes(buffer[at + LENGTH_BYTES : end]))
        at = end
    del buffer[:at]
    return found


class StreamSocket:
    """`channel.Socket` over one libp2p stream. Use it in the loop that made it."""

    def __init__(self, remote: RemotePeer) -> None:
        self.remote = remote
        self.outbox: deque[bytes] = deque()  # framed; the trio thread takes from it
        self.unsent, self.unread = ByteGauge(), ByteGauge()
        self.is_closing = False
        self._inbox: deque[bytes] = deque()
        self._news, self._room, self._over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._post: Post | None = None
        self._wake: Callable[[], object] | None = None
        self._resume: Callable[[], object] | None = None
        self._bind: Callable[[bool], object] | None = None

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()

    def connect_pump(
        self,
        post: Post,
        wake: Callable[[], object],
        resume: Callable[[], object],
        bind: Callable[[bool], object],
    ) -> None:
        """Ties it to the trio side. `wake` says that there is something to send or to close,
        `resume` that there is room to read again, `bind` what `keep_place` says.
        """
        self._post, self._wake, self._resume, self._bind = post, wake, resume, bind

    def keep_place(self, is_staked: bool) -> None:
        """The connection keeps its place while this stream lasts: the other side has shown its
        account.
        """
        if self._bind is not None:
            self._tell(partial(self._bind, is_staked))

    async def send(self, message: bytes) -> None:
        if self._over.is_set() or self.is_closing:
            raise ConnectionError("the stream has ended")
        framed = len(message).to_bytes(LENGTH_BYTES, "big") + message
        self.outbox.append(framed)
        self.unsent.add(len(framed))
        self._tell(self._wake)
        while self.unsent.is_full and not self._over.is_set():
            self._room.clear()
            if self.unsent.is_full:
                await self._room.wait()
        if self._over.is_set():
            raise ConnectionError("the stream has ended")

    async def receive(self) -> bytes | None:
        while not self._inbox:
            if self._over.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        message = self._inbox.popleft()
        if self.unread.take(len(message)):
            self._tell(self._resume)
        return message

    async def close(self, reason: str) -> None:
        """Sends what is queued, ends the stream, and waits for that within a bound."""
        self.is_closing = True
        self._tell(self._wake)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._over.wait()
        except TimeoutError:
            self.ended()  # the trio side resets the stream in its own time

    def arrived(self, messages: list[bytes]) -> None:
        self._inbox.extend(messages)
        self._news.set()

    def room_again(self) -> None:
        self._room.set()

    def ended(self) -> None:
        """The stream has ended. Messages that arrived before can still be received."""
        self._over.set()
        self._news.set()
        self._room.set()

    def _tell(self, function: Callable[[], object] | None) -> None:
        if self._post is None or function is None:
            return  # the trio side looks at the outbox when it starts
        try:
            self._post(function)
        except ConnectionError:
            # The thread has ended, and so has the stream.
            self.ended()
