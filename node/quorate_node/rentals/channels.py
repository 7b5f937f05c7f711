"""Bounds what one SSH channel or connection can make this program remember.

The SSH library counts a window in bytes only: small packets that nobody reads would take fifty
times their size. It keeps all environment variables of a session, and it writes without end to a
client that does not read. Each function here replaces one method of one object of the library.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.packet import SSHPacket

WINDOW_BYTES = 1 << 20  # of each channel
PACKET_BYTES = 64 << 10
WRITTEN_BYTES = 1 << 20  # of each connection, before its programs wait
_MERGED_BYTES = 4096
VARIABLES_MAX = 64
VARIABLE_BYTES_MAX = 4096
Channel = TypeVar("Channel", bound=SSHChannel[bytes])


def bounded(channel: Channel) -> Channel:
    channel._accept_data = partial(_accept, channel, channel._accept_data)  # type: ignore[method-assign]
    if isinstance(channel, asyncssh.SSHServerChannel):
        channel._process_env_request = partial(_take_variable, channel)  # type: ignore[method-assign]
    return channel


def _accept(
    channel: SSHChannel[bytes],
    take: Callable[[bytes, int | None], None],
    data: bytes,
    datatype: int | None = None,
) -> None:
    """Small packets become one, while the session is paused."""
    kept = channel._recv_buf
    if (
        data
        and kept
        and channel._recv_paused
        and kept[-1][1] is datatype
        and len(kept[-1][0]) < _MERGED_BYTES
        and channel._send_state not in ("close_pending", "closed")
    ):
        channel._recv_window -= len(data)
        kept[-1] = kept[-1][0] + data, datatype
    else:
        take(data, datatype)


def _take_variable(channel: asyncssh.SSHServerChannel[bytes], packet: SSHPacket) -> bool:
    name, value = packet.get_string(), packet.get_string()
    packet.check_end()
    if len(channel._env) >= VARIABLES_MAX or len(name) + len(value) > VARIABLE_BYTES_MAX:
        return False
    channel._env[name] = value
    return True


class FlowControl:
    """Stops the programs of one connection, and its requests, while its client does not read."""

    def __init__(self, connection: asyncssh.SSHServerConnection) -> None:
        self.is_paused = False
        self.watchers: set[Callable[[bool], None]] = set()
        transport = connection._transport
        assert transport is not None, "the connection has been made"
        self._transport: asyncio.Transport = transport
        transport.set_write_buffer_limits(high=WRITTEN_BYTES)
        # The event loop calls these of every protocol; the library's do nothing.
        connection.pause_writing = partial(self._set, True)  # type: ignore[method-assign]
        connection.resume_writing = partial(self._set, False)  # type: ignore[method-assign]

    def _set(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        if not self._transport.is_closing():
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()
        for watcher in tuple(self.watchers):
            watcher(is_paused)
