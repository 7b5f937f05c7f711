"""Remembers the pools in which this provider has ever opened stake slots.

The chain lists slots by pool. GPUs that are gone, or a change of how many a slot has, would
otherwise hide the stake of the pool before.
"""

from collections.abc import Iterable
from pathlib import Path

from quorate_protocol.units import Hash32
from quorate_runtime.files import write_atomic

FILE = "stake_classes"
MARKER = "registration_state"  # earlier versions kept only the newest classes, in this file


def remember(home: Path, pools: Iterable[Hash32]) -> None:
    wanted = remembered(home) | set(pools)
    if set(_words(home / FILE)) != {item.hex() for item in wanted}:
        lines = sorted(item.hex() for item in wanted)
        write_atomic(home / FILE, ("\n".join(lines) + "\n").encode())


def remembered(home: Path) -> frozenset[Hash32]:
    words = [word for name in (FILE, MARKER) for word in _words(home / name)]
    return frozenset(Hash32(bytes.fromhex(word)) for word in words if len(word) == 64)


def _words(path: Path) -> list[str]:
    text = path.read_text(errors="replace") if path.exists() else ""
    return [word for word in text.split() if _is_hex(word)]


def _is_hex(word: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in word)
