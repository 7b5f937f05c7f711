"""Converts an exit that the engine or the kernel reports to the exit status of PROTOCOL §3."""

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
