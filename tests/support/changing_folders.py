"""Looks into folders whose owners work meanwhile, where pathlib's glob fails over what goes."""

import os
from collections.abc import Iterator
from pathlib import Path


def paths_below(folder: Path) -> Iterator[Path]:
    """All folders and files below."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names))


def files_below(folder: Path) -> list[Path]:
    return [path for path in paths_below(folder) if path.is_file()]


def lease_groups(lease_id: str) -> list[Path]:
    """A lease's control groups on this machine, of every hierarchy and engine."""
    found = paths_below(Path("/sys/fs/cgroup"))
    return [path for path in found if path.parts[-2:] == ("quorate", lease_id)]
