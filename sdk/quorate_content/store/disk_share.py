"""How much of a disk a store may use when nobody set a size."""

import shutil
from pathlib import Path


def disk_bytes(folder: Path) -> int:
    """Returns the size of the disk that the folder is on, or will be on once it is made."""
    return shutil.disk_usage(_existing(folder)).total


def half_of_free(folder: Path, at_least: int) -> int:
    """Returns half of what is free on the disk or in the folder already, at least `at_least`."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    held = sum(path.stat().st_size for path in files)
    return max(at_least, (free_bytes(folder) + held) // 2)


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
