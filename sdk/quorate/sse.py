"""Server-sent events, as far as the coordinator uses them: `id:`, `data:`, comments as keep-alive.

Standard: WHATWG HTML, "Server-sent events".
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from quorate.errors import UnavailableError

LINE_BYTES_MAX = 1 << 20
EVENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: `id` as sent, "" when none was; `data` with its lines joined."""

    id: str
    data: str


async def server_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Events of a byte stream. UnavailableError when a line or event outgrows its bound."""
    identity, size = "", 0
    data: list[str] = []
    async for line in _lines(chunks):
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
            size += len(value)
            if size > EVENT_BYTES_MAX:
                raise UnavailableError(f"the coordinator sent an event of more than {EVENT_BYTES_MAX} bytes")
            data.append(value)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    pending = b""
    async for chunk in chunks:
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(pending) > LINE_BYTES_MAX:
            raise UnavailableError(f"the coordinator sent a line of more than {LINE_BYTES_MAX} bytes")
