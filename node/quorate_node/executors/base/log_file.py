"""Reads a log file while another thread or process writes it."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from quorate_protocol.messages.ports import Clock

_CHUNK_BYTES = 64 * 1024
_POLL_SECONDS = 0.1


async def follow_file(
    path: Path, clock: Clock, is_written: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yields what the file holds, then additions while `is_written()`; nothing without a file."""
    offset = 0
    while True:
        will_grow = (
            is_written()
        )  # Asked before the read, so that the next round has what comes in between.
        while chunk := _read(path, offset):
            offset += len(chunk)
            yield chunk
        if not will_grow:
            return
        await clock.sleep(_POLL_SECONDS)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return b""  # no output yet, or the lease was removed
