"""Chooses the host's user of each lease, so that no two leases share the kernel's limits of a user.

The kernel counts inotify instances, signals, timers, message queues and pipe buffers by user. A job
that uses up one of them would change what another job of the same user sees.
"""

import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.files import write_atomic

SHOWN_USER = 65534  # the number that every job sees, whichever user it has outside
USERS_MAX = 1024  # of one daemon
_FILE = "user"
# Distributions give no user a number here: https://systemd.io/UIDS-GIDS (1879048192 and above).
_FIRST = 0x70000000
_RANGES = 1 << 16


class SlotUsers:
    """The users of one daemon's leases, kept in their folders. `first` of USERS_MAX numbers; 0
    derives it from `home`, so that daemons of one machine rarely share a range. Safe between
    threads.
    """

    def __init__(self, home: Path, first: int = 0) -> None:
        self._users = job_users(home, first)
        self._home = home
        self._lock = threading.Lock()

    def of(self, lease_id: str) -> int:
        """Chooses a user the first time. Raises Unavailable if the range is in use."""
        with self._lock:
            path = self._home / lease_id / _FILE
            if path.exists():
                return int(path.read_text())
            taken = users_of_processes()
            for file in self._home.glob(f"*/{_FILE}"):
                with suppress(FileNotFoundError):  # its lease was removed meanwhile
                    taken.add(int(file.read_text()))
            for user in self._users:
                if user not in taken:
                    write_atomic(path, str(user).encode())
                    return user
            raise Unavailable(
                f"all users from {self._users[0]} to {self._users[-1]} run jobs; set "
                "another range with --job-user",
                60.0,
            )


def job_users(home: Path, first: int = 0) -> range:
    """Returns the users of the jobs of an executor with this home."""
    place = zlib.crc32(str(home.absolute()).encode()) % _RANGES
    begin = first or _FIRST + place * USERS_MAX
    return range(begin, begin + USERS_MAX)


def users_of_processes() -> set[int]:
    """Returns the users of all processes on this machine."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # the process has ended
                found.add(os.stat(f"/proc/{name}").st_uid)
    return found
