"""Crash points of the supervisor, for tests.

The supervisor cannot import `quorate_runtime.process.crash_points`. It reads the variable itself;
it inherits the variable from the daemon that a test armed.
"""

import os
import signal
from pathlib import Path


def crash_point(name: str) -> None:
    """Kills this process when the variable, or the file that it names, holds exactly `name`."""
    text = os.environ.get("QUORATE_CRASH_AT", "")
    file = Path(text[1:]) if text.startswith("@") else None
    try:
        text = file.read_text() if file else text
    except FileNotFoundError:
        return  # not armed now
    if text == name:
        if file:
            file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
