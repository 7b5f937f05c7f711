"""What all executors do alike with a lease: exit status (PROTOCOL §3), log."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_SIGNAL_BASE,
    EXIT_TIMEOUT,
    Milliseconds,
    Seconds,
)

_SHELL_SIGNAL_BASE = 128
_SIGNAL_MAX = 64
_SIGKILL = 9


def exit_status(
    code: int, wall_ms: Milliseconds, max_duration: Seconds, is_memory_kill: bool
) -> int:
    """0-255 exit, 256 + signal, 512 time-out, 513 memory kill. Engines report a signal as 128 + n;
    every executor reads 129-192 as a signal, so that equal programs get equal statuses. A time-out
    follows from the measured time, also for a run while the daemon was down.
    """
    if wall_ms >= max_duration * 1000:
        return EXIT_TIMEOUT
    signal = code - _SHELL_SIGNAL_BASE
    if is_memory_kill and signal == _SIGKILL:
        return EXIT_MEMORY_KILL
    if 0 < signal <= _SIGNAL_MAX:
        return EXIT_SIGNAL_BASE + signal
    return code & 0xFF


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
