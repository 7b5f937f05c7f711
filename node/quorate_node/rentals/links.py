"""Links an SSH channel to a socket inside the container, with no more in memory than windows."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import asyncssh
from asyncssh.channel import SSHChannel

from quorate_node.rentals.channels import FlowControl

ERRORS = asyncssh.EXTENDED_DATA_STDERR
START, CHANNEL, CONNECTION = "start", "channel", "connection"  # why nothing is read
_FRAME_BYTES = 8
_STDERR = 2
_KINDS = (b"\0\0\0\0", b"\1\0\0\0", b"\2\0\0\0")


class Link(asyncio.Protocol):
    """Reads from the socket while both channel and connection have room. `used` is called for each
    piece of input, and of forwarded output. `is_forward`: the channel ends with the socket.
    """

    def __init__(
        self,
        channel: SSHChannel[bytes],
        flow: FlowControl,
        used: Callable[[], None],
        is_framed: bool = False,
        is_forward: bool = False,
    ) -> None:
        self._channel, self._flow, self._used = channel, flow, used
        self._transport: asyncio.Transport | None = None
        self._frames = Frames() if is_framed else None
        self._is_forward = is_forward
        self._holds: set[str] = set()
        self._is_input_over = False
        self.ended = asyncio.Event()
        self.moved = 0  # bytes from the socket

    async def open(self, made: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=made)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._flow.watchers.add(self._hold_connection)
        if self._flow.is_paused:
            self._hold_connection(True)
        if self._holds:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_forward:
            self._used()
        self.moved += len(data)
        if self._frames is None:
            self._send(data, is_error=False)
            return
        for is_error, piece in self._frames.take(data):
            self._send(piece, is_error)

    def eof_received(self) -> bool:
        self.ended.set()
        if self._is_forward and not self._channel.is_closing():
            self._channel.write_eof()
        return not self._is_input_over  # what the client sends still goes in

    def connection_lost(self, exc: Exception | None) -> None:
        self._flow.watchers.discard(self._hold_connection)
        self.ended.set()
        if self._is_forward:
            self._channel.close()
        else:
            self._channel.resume_reading()

    def pause_writing(self) -> None:
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        self._channel.resume_reading()

    @property
    def is_held(self) -> bool:
        return bool(self._holds)

    def write(self, data: bytes) -> None:
        self._used()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        self._is_input_over = True
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_forward and self.ended.is_set():
            self._transport.close()
        else:
            with suppress(OSError):  # the other side has gone
                self._transport.write_eof()

    def hold(self, why: str, is_held: bool) -> None:
        """Reads nothing more from the socket while anything holds it."""
        was_held = self.is_held
        (self._holds.add if is_held else self._holds.discard)(why)
        if self._transport is None or self.is_held == was_held or self._transport.is_closing():
            return
        (self._transport.pause_reading if self.is_held else self._transport.resume_reading)()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _hold_connection(self, is_held: bool) -> None:
        self.hold(CONNECTION, is_held)

    def _send(self, data: bytes, is_error: bool) -> None:
        if not self._channel.is_closing():
            self._channel.write(data, ERRORS if is_error else None)


class Frames:
    """Takes apart what an engine sends of a program without a terminal."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._is_error = False
        self._is_plain = False  # an engine that cannot start a program says so without frames

    def take(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Returns pieces, each with whether it is of standard error."""
        pieces: list[tuple[bool, bytes]] = []
        while data:
            if self._is_plain:
                pieces.append((True, data))
                break
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                pieces.append((self._is_error, piece))
                continue
            missing = _FRAME_BYTES - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) >= len(_KINDS[0]) and self._head[:4] not in _KINDS:
                self._is_plain, data = True, self._head + data
            elif len(self._head) == _FRAME_BYTES:
                self._is_error = self._head[0] == _STDERR
                self._left = int.from_bytes(self._head[4:], "big")
                self._head = b""
        return pieces


class ForwardSession(asyncssh.SSHTCPSession[bytes]):
    """One connection to a port of the container; `link` is open already, and held."""

    def __init__(self, link: Link, at_end: Callable[[], object]) -> None:
        self._link, self._at_end = link, at_end

    def session_started(self) -> None:
        self._link.hold(START, False)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._link.write(data)

    def eof_received(self) -> bool:
        self._link.write_eof()
        return True

    def pause_writing(self) -> None:
        self._link.hold(CHANNEL, True)

    def resume_writing(self) -> None:
        self._link.hold(CHANNEL, False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.close()
        self._at_end()
