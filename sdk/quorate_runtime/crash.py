"""Named crash points: tests ask a daemon to die by SIGKILL at an exact place, as a power cut would.

The program's cli reads the environment once and hands the text to `configure`; without it a point costs one comparison.
"""

import os
import signal
from dataclasses import dataclass


@dataclass(slots=True)
class _Armed:
    """One per process: there is one process to kill."""

    name: str = ""  # empty: no crash
    left: int = 0  # passes until the crash


_armed = _Armed()


def configure(text: str) -> None:
    """Arms `<name>` or `<name>:<n>` (die at the n-th pass, from 1); the empty text disarms.

    A name also stands for all points below it: `effect.before` for `effect.before.StartTask`.
    """
    name, _, count = text.partition(":")
    assert not count or (count.isdecimal() and int(count) > 0), f"crash point {text!r}: the part after the colon is a number from 1"
    _armed.name, _armed.left = name, int(count or 1)


def crash_point(name: str) -> None:
    """Dies here, with nothing flushed and nobody told, when this point is armed and due."""
    if not _armed.name or not (name == _armed.name or name.startswith(_armed.name + ".")):
        return
    _armed.left -= 1
    if _armed.left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
