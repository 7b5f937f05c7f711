"""The health of a running daemon: which problems it has, each with a name and a sentence.

A daemon that answers is alive; a failed journal ends the process. A daemon without known problems
is ready.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import UnixSeconds

DISK_BYTES_LEAST = 256 << 20
DISK_INODES_LEAST = 1024
CHAIN_LAG_SECONDS_MAX = 60
SILENT_SECONDS_MAX = 20  # without any answer of the chain node
BLOCK_SECONDS_MAX = 15  # from block to block on the slowest supported chain
BEHIND_SECONDS_MAX = 30  # of the clock, behind the journal's newest event


class Problem(Struct, frozen=True):
    """One problem of a daemon. `name` is one of chain, beacon, clock, engine, disk, room,
    documents, archive, tables, stake, coordinator, outbox, receipts, stopping.
    """

    name: str
    text: str


@dataclass(slots=True)
class Board:
    """The newest problem of each part of a daemon."""

    _known: dict[str, str]

    def __init__(self) -> None:
        self._known = {}

    def put(self, name: str, text: str = "") -> None:
        if text:
            self._known[name] = " ".join(text.split())[:500]
        else:
            self._known.pop(name, None)

    def has(self, name: str) -> bool:
        return name in self._known

    def problems(self) -> tuple[Problem, ...]:
        return tuple(Problem(name, self._known[name]) for name in sorted(self._known))


def chain_problem(clock: Clock, newest: UnixSeconds, url: str, depth: int = 1) -> str:
    """Returns "" while the newest followed block is recent enough, else what is wrong. `depth` is
    how many blocks the daemon waits before it follows one.
    """
    lag = int(clock.now()) - newest
    if lag <= CHAIN_LAG_SECONDS_MAX + (depth - 1) * BLOCK_SECONDS_MAX:
        return ""
    age = f"the newest block followed is {lag} s old" if newest else "no block was followed yet"
    return f"{age}; look at the chain node at {url}"


def silence_problem(clock: Clock, answered_at: float, url: str) -> str:
    """Returns "" while the chain node answers, else since when it does not. A node that hangs is
    noticed by this long before its newest block is too old.
    """
    seconds = int(clock.now() - answered_at)
    if seconds <= SILENT_SECONDS_MAX:
        return ""
    return f"the chain node at {url} has not answered for {seconds} s; look at it"


def clock_problem(now: UnixSeconds, newest: UnixSeconds) -> str:
    """Returns "" unless the clock is far behind `newest`, the time of the newest event."""
    behind = newest - now
    if behind <= BEHIND_SECONDS_MAX:
        return ""
    return (
        f"the clock is {behind} s behind the journal: no deadline passes until it has caught up; "
        "set it right if it is wrong, else wait"
    )


def disk_problem(home: Path) -> str:
    """Returns "" while there is room on the disk, else what is wrong. Blocks for a short time.
    Without any room the journal waits, and the daemon takes no further event.
    """
    try:
        found = os.statvfs(home)
    except OSError as error:
        return f"{home} cannot be read: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY:
        return (
            f"{home} is on a disk that was made read-only, as after an error of it: look at the "
            "kernel's log"
        )
    if found.f_files and found.f_favail < DISK_INODES_LEAST:
        return (
            f"{found.f_favail} inodes are free below {home}: remove files there, or none can be "
            "made"
        )
    return (
        ""
        if free >= DISK_BYTES_LEAST
        else f"{free >> 20} MiB are free below {home}; the journal needs room: free some"
    )
