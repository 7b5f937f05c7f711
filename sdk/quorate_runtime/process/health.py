"""What is wrong with a daemon that lives: every cause by its name, so that whoever looks knows
where to look next.

Live means that it answers at all: a failed journal ends the process. Ready means that no problem
is known.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from quorate_protocol.ports import Clock
from quorate_protocol.units import UnixSeconds

DISK_BYTES_LEAST = 256 << 20
DISK_INODES_LEAST = 1024
CHAIN_LAG_SECONDS_MAX = 60
BLOCK_SECONDS_MAX = 15  # of the slowest chain that is taken


class Problem(Struct, frozen=True):
    """One cause. `name` is one of chain, beacon, engine, disk, documents, archive, tables,
    stake, coordinator, stopping.
    """

    name: str
    text: str


@dataclass(slots=True)
class Board:
    """What the parts of a daemon last said of themselves: a problem each, or none."""

    _known: dict[str, str]

    def __init__(self) -> None:
        self._known = {}

    def put(self, name: str, text: str = "") -> None:
        """The newest word of a part; without text all is well with it."""
        if text:
            self._known[name] = " ".join(text.split())[:500]
        else:
            self._known.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether all is not well with this part."""
        return name in self._known

    def problems(self) -> tuple[Problem, ...]:
        """In order of their names."""
        return tuple(Problem(name, self._known[name]) for name in sorted(self._known))


def chain_problem(clock: Clock, newest: UnixSeconds, url: str, depth: int = 1) -> str:
    """ "" while the newest block that was followed is young enough; `depth` blocks are waited for
    before one is followed.
    """
    lag = int(clock.now()) - newest
    if lag <= CHAIN_LAG_SECONDS_MAX + (depth - 1) * BLOCK_SECONDS_MAX:
        return ""
    age = f"the newest block followed is {lag} s old" if newest else "no block was followed yet"
    return f"{age}; look at the chain node at {url}"


def disk_problem(home: Path) -> str:
    """ "" while there is room; the journal's next append may fail when there is none, and that
    ends the daemon. Blocking, but quick.
    """
    try:
        found = os.statvfs(home)
    except OSError as error:
        return f"{home} cannot be looked at: {error.strerror}"  # not re-raised: this is the finding
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
