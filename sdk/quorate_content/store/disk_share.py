"""How much of a disk a store may use when nobody set a size."""

import shutil
from pathlib import Path


def disk_bytes(folder: Path) -> int:
    """Returns the size of the disk that the folder is on, or will be on once it is made."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).total


def half_of_disk(folder: Path, at_least: int) -> int:
    """Returns half of the disk that the folder is on, and never less than `at_least` bytes."""
    return max(at_least, disk_bytes(folder) // 2)
