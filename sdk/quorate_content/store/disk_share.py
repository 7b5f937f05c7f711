"""How much of a disk a store may use when nobody set a size."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG


def disk_bytes(folder: Path) -> int:
    """Returns the size of the disk that the folder is on, or will be on once it is made."""
    return shutil.disk_usage(_existing(folder)).total


def half_of_free(folder: Path, at_least: int) -> int:
    """Returns half of what is free on the disk or in the folder already, at least `at_least`."""
    return max(at_least, (free_bytes(folder) + bytes_below(folder)) // 2)


def bytes_below(folder: Path) -> int:
    """Returns the size of all files below, which others may add and remove meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                found = os.lstat(os.path.join(parent, name))
                total += found.st_size if S_ISREG(found.st_mode) else 0
    return total


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def half_of_disk(folder: Path, at_least: int) -> int:
    """Returns half of the disk that the folder is on, and never less than `at_least` bytes."""
    return max(at_least, disk_bytes(folder) // 2)
