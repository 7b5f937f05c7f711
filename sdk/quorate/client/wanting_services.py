"""A client's own services come before its batch jobs: what wants a machine says so in the profile.

Each service touches a file of its own while it lacks a replica that it wants. Orders of tasks wait
as long as one of them is fresh. A gateway that has ended holds nobody up.
"""

import time
from pathlib import Path

FOLDER = "wanting"
FRESH_SECONDS = 20.0
LOOK_SECONDS = 2.0


def put_want(home: Path, service: str, is_wanting: bool) -> None:
    """Raises OSError if the profile's folder cannot be written."""
    path = home / FOLDER / service
    if is_wanting:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
    else:
        path.unlink(missing_ok=True)


def wanting(home: Path) -> str:
    """The name of a service of this profile that lacks a machine now; "" if none does."""
    now = time.time()
    try:
        names = [
            item.name
            for item in (home / FOLDER).iterdir()
            if now - item.stat().st_mtime < FRESH_SECONDS
        ]
    except OSError:
        return ""  # no service ever lacked one
    return min(names, default="")
