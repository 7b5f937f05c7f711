"""The trio side of one libp2p stream: moves bytes between it and a `StreamSocket`."""

import asyncio
import logging
from collections.abc import Callable

import trio
from libp2p.abc import INetStream
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.exceptions import SwarmException
from libp2p.stream_muxer.exceptions import MuxedConnError, MuxedStreamError

from quorate_protocol.codec.peer_ids import peer_key_of_bytes
from quorate_runtime.p2p.host.guarded_yamux import GuardedYamux
from quorate_runtime.p2p.host.stream_socket import RemotePeer, StreamSocket, split_messages

READ_BYTES = 256 << 10
WRITE_BYTES = 256 << 10  # joined into one write
LINGER_SECONDS = 2.0  # between our end of the stream and the other side's

ENDS = (IOException, RawConnError, SwarmException, MuxedConnError, MuxedStreamError, OSError)

log = logging.getLogger(__name__)


def remote_of(stream: INetStream) -> RemotePeer:
    """The proved other side of a stream. Refused(UNSUPPORTED) if its key is not Ed25519."""
    address = stream.get_remote_address()
    key = peer_key_of_bytes(stream.muxed_conn.peer_id.to_bytes())
    return RemotePeer(key, address[0] if address else "")


class StreamPump:
    """Reads and writes one stream until it ends or the socket is closed."""

    def __init__(
        self, stream: INetStream, socket: StreamSocket, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Call it in the trio thread. `socket` belongs to `loop`."""
        self._stream, self._socket, self._loop = stream, socket, loop
        self._work, self._room = trio.Event(), trio.Event()
        connection = stream.muxed_conn
        assert isinstance(connection, GuardedYamux), "the only muxer on offer"
        self._connection, self._is_bound, self._is_over = connection, False, False
        token = trio.lowlevel.current_trio_token()

        def post(function: Callable[[], object]) -> None:
            try:
                token.run_sync_soon(function, idempotent=True)
            except trio.RunFinishedError as error:
                raise ConnectionError("the libp2p host has ended") from error

        socket.connect_pump(post, self._wake, self._resume, self._bind)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, nursery.cancel_scope)
                nursery.start_soon(self._write, nursery.cancel_scope)
        finally:
            self._is_over = True
            if self._is_bound:
                self._connection.unbind()
            self._tell(self._socket.ended)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LINGER_SECONDS):
                await self._stream.reset()  # nothing is sent if both sides have ended it

    async def _read(self, scope: trio.CancelScope) -> None:
        buffer = bytearray()
        try:
            while True:
                buffer += await self._stream.read(READ_BYTES)
                messages = split_messages(buffer)
                if messages:
                    self._socket.unread.add(sum(map(len, messages)))
                    self._tell(lambda taken=messages: self._socket.arrived(taken))  # type: ignore[misc]
                while self._socket.unread.is_full:
                    self._room = trio.Event()
                    if self._socket.unread.is_full:
                        await self._room.wait()
        except ENDS:
            pass
        except ValueError as error:
            log.warning("the stream of a peer is closed: %s", error)
        scope.cancel()

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            while await self._has_work():
                await self._write_some()
            await self._stream.close()
            await trio.sleep(LINGER_SECONDS)
        except ENDS:
            pass
        scope.cancel()

    async def _has_work(self) -> bool:
        """Waits for something to send. False once all is sent and the socket is closing."""
        while True:
            self._work = trio.Event()
            # Before the outbox: the other thread fills that first, and closes then.
            is_closing = self._socket.is_closing
            if self._socket.outbox:
                return True
            if is_closing:
                return False
            await self._work.wait()

    async def _write_some(self) -> None:
        outbox, size = self._socket.outbox, 0
        parts: list[bytes] = []
        while outbox and (not parts or size + len(outbox[0]) <= WRITE_BYTES):
            parts.append(outbox.popleft())
            size += len(parts[-1])
        await self._stream.write(b"".join(parts))
        if self._socket.unsent.take(size):
            self._tell(self._socket.room_again)

    def _wake(self) -> None:
        self._work.set()

    def _resume(self) -> None:
        self._room.set()

    def _bind(self, is_staked: bool) -> None:
        if not self._is_over:
            self._is_bound = True
            self._connection.bind(is_staked)

    def _tell(self, function: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.debug("the loop of a stream's socket has ended")
