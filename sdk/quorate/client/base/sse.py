"""Reads server-sent events as the coordinator sends them: `id:`, `data:`, and comments as
keep-alive.

Standard: WHATWG HTML, "Server-sent events".
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from quorate.base.errors import UnavailableError

EVENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its last `id` or "", and its `data` lines joined."""

    id: str
    data: str


async def server_events(
    chunks: AsyncIterator[bytes], bytes_max: int = EVENT_BYTES_MAX
) -> AsyncIterator[ServerEvent]:
    """Yields the events of a byte stream. Raises UnavailableError if a line or an event exceeds
    `bytes_max` bytes.
    """
    identity, size = "", 0
    data: list[str] = []
    async for line in _lines(chunks, bytes_max):
        if not line:
            if data:
                yield ServerEvent(identity, "\n".join(data))
            data, size = [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            identity = value
        elif name == "data":
            size += (
                len(value) + 1
            )  # empty lines count too, because an event may have any number of them
            if size > bytes_max:
                raise _too_long("an event", bytes_max)
            data.append(value)


async def _lines(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[str]:
    """Yields lines. Each byte is searched and moved once, however small the received pieces are."""
    pending = bytearray()
    async for chunk in chunks:
        begun, seen = 0, len(pending)
        pending += chunk
        while (end := pending.find(b"\n", seen)) >= 0:
            if end - begun > bytes_max:
                raise _too_long("a line", bytes_max)
            yield pending[begun:end].removesuffix(b"\r").decode(errors="replace")
            begun = seen = end + 1
        del pending[:begun]
        if len(pending) > bytes_max:
            raise _too_long("a line", bytes_max)


def _too_long(what: str, bytes_max: int) -> UnavailableError:
    return UnavailableError(f"the coordinator sent {what} of more than {bytes_max} bytes")
