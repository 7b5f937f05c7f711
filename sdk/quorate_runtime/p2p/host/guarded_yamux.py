"""Yamux with the bounds that libp2p 0.8.1 does not hold against the other side.

- A peer that ignores the receive window made libp2p buffer without end.
- A peer could open any number of streams on one connection.
- Window updates were sent for each read, which halved the throughput.
- A reset looked like a clean end of the stream.
- A peer that reads nothing held our writers, each of which looked at its window 100 times a second.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import ISecureConn
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from libp2p.stream_muxer.yamux import yamux

FRAME_BYTES_MAX = 1 << 20
WINDOW_BYTES_MAX = 4 << 20  # to which the receive window of one stream grows
BUFFER_BYTES_MAX = 2 * WINDOW_BYTES_MAX  # above every window that we grant
INBOUND_STREAMS_MAX = 512  # of one connection
STUCK_SECONDS = 10.0  # in which a peer must take a frame, and open the window of a stream again
CLOSED_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


class _Buffer(bytearray):
    """Received bytes that nobody has read yet. Yamux closes the connection on TooSlowError."""

    def extend(self, data: Any) -> None:
        if len(self) + len(data) > BUFFER_BYTES_MAX:
            raise trio.TooSlowError("the peer sent more than its window")
        super().extend(data)


class _Buffers(dict[int, bytearray]):
    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        super().__setitem__(stream_id, _Buffer(buffer))


class _Streams(dict[int, yamux.YamuxStream]):
    def __setitem__(self, stream_id: int, stream: yamux.YamuxStream) -> None:
        if not stream.is_initiator and len(self) >= INBOUND_STREAMS_MAX:
            raise trio.TooSlowError("the peer opened too many streams")
        super().__setitem__(stream_id, stream)


class GuardedYamux(yamux.Yamux):
    """A connection whose frames, buffers and streams are bounded. Over a bound it is closed."""

    def __init__(
        self,
        secured_conn: ISecureConn,
        peer_id: ID,
        is_initiator: bool | None = None,
        on_close: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        super().__init__(secured_conn, peer_id, is_initiator, on_close)
        self.stream_buffers = _Buffers()
        self.streams = _Streams()
        # Whether this connection keeps its place (`ConnectionPlaces`); inbound ones only.
        self.bind: Callable[[bool], object] = lambda is_staked: None
        self.unbind: Callable[[], object] = lambda: None

    async def _read_data_body(self, length: int) -> bytes:
        if length > FRAME_BYTES_MAX:
            raise trio.TooSlowError(f"a frame of {length} bytes")
        return await super()._read_data_body(length)

    async def _write_frame(self, data: bytes) -> None:
        """See `Yamux._write_frame`. A peer that does not take the frame loses its connection."""
        async with self._write_lock:
            with trio.move_on_after(STUCK_SECONDS) as scope:
                await self.secured_conn.write(data)
        if scope.cancelled_caught:
            await self.cut()
            raise MuxedConnUnavailable("the peer takes no bytes")

    async def cut(self) -> None:
        """Ends the connection at once. `close` would first send something, and so might wait."""
        try:
            await self.secured_conn.close()
        except Exception:
            log.debug("a connection could not be closed", exc_info=True)


class GuardedStream(yamux.YamuxStream):
    """A stream that grants its window in large steps and tells a reset from an end. It waits for
    the other side's window without looking at it all the time.
    """

    conn: GuardedYamux

    def __init__(self, stream_id: int, conn: GuardedYamux, is_initiator: bool) -> None:
        self._opened = trio.Event()
        super().__init__(stream_id, conn, is_initiator)

    async def read(self, n: int | None = -1) -> bytes:
        """See `YamuxStream.read`. MuxedStreamEOF only after the other side's FIN."""
        try:
            return await super().read(n)
        except MuxedStreamEOF as error:
            if self.reset_received or not self.recv_closed:
                raise MuxedStreamReset("the stream was reset, or its connection ended") from error
            raise

    @property
    def send_window(self) -> int:
        return self._send_window

    @send_window.setter
    def send_window(self, size: int) -> None:
        self._send_window = size
        if size > 0:
            self._opened.set()

    async def write(self, data: bytes) -> None:
        """See `YamuxStream.write`. A peer whose window stays closed loses its connection."""
        sent = 0
        while sent < len(data):
            await self._wait_for_window()
            part = data[sent : sent + max(1, self.send_window)]
            await super().write(part)
            sent += len(part)

    async def _wait_for_window(self) -> None:
        until = trio.current_time() + STUCK_SECONDS
        while self.send_window <= 0 and not self.closed:
            if trio.current_time() >= until:
                await self.conn.cut()
                raise MuxedStreamError("the peer reads nothing")
            self._opened = trio.Event()
            with trio.move_on_after(CLOSED_POLL_SECONDS):
                await self._opened.wait()

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        async with self.window_lock:
            buffered = len(self.conn.stream_buffers.get(self.stream_id, b""))
            missing = self.target_recv_window - (self.recv_window + buffered)
            if missing < self.target_recv_window // 2:
                return
            granted = self._grow_to_delta(buffered)
            if self.target_recv_window < WINDOW_BYTES_MAX:
                granted += self._apply_autotune_epoch(buffered)
        await self.send_window_update(granted)
