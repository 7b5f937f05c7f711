"""Named crash points: a test makes a program die by SIGKILL at an exact place, as in a power cut.

The program's cli reads the environment once and passes the text to `configure`. Without it a point
costs one comparison. `tests/support/crash/points.py` lists all points.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

CRASH_VARIABLE = "QUORATE_CRASH_AT"


@dataclass(slots=True)
class _Armed:
    """What this process is armed with."""

    is_on: bool = False
    text: str = ""
    name: str = ""
    left: int = 0  # passes until the crash
    file: Path | None = None


_armed = _Armed()


def configure(text: str) -> None:
    """Arms `<name>` or `<name>:<n>` (die at the n-th pass, from 1); the empty text disarms.

    A name also means all points below it: `effect.before` for `effect.before.StartTask`. With
    `@<file>` the text is read from a file at every pass, so that a running program can be armed.
    The file is removed just before the crash, so that the program crashes once.
    """
    _armed.file = Path(text[1:]) if text.startswith("@") else None
    _armed.is_on = bool(text)
    _arm("" if _armed.file else text)


def crash_point(name: str, of: object = None) -> None:
    """Kills this process if the point is armed and due. `of`: the event or effect at this point."""
    if _armed.is_on:
        _pass(name if of is None else f"{name}.{type(of).__name__}")


def _pass(name: str) -> None:
    if _armed.file is not None:
        _look(_armed.file)
    if not _armed.name or not (name == _armed.name or name.startswith(_armed.name + ".")):
        return
    _armed.left -= 1
    if _armed.left == 0:
        if _armed.file is not None:
            _armed.file.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)


def _look(file: Path) -> None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        text = ""  # not armed now
    if text != _armed.text:
        _arm(text)


def _arm(text: str) -> None:
    name, _, count = text.partition(":")
    assert not count or (count.isdecimal() and int(count) > 0), (
        f"crash point {text!r}: the part after the colon is a number from 1"
    )
    _armed.text, _armed.name, _armed.left = text, name, int(count or 1)
