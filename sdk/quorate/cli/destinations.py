"""Tries the folder for an output before anything is paid."""

import errno
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.base.errors import UsageError
from quorate_protocol.quantity_input import size_text


def check_destination(folder: Path | None) -> None:
    """Raises UsageError if the folder exists or cannot be made."""
    if folder is None:
        return
    if folder.is_file():
        raise UsageError(f"--output: {folder} is a file; name a new folder")
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} already exists; give a new directory for the output")
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raises UsageError if files cannot be written into the folder, or its nearest parent."""
    try:
        with TemporaryDirectory(prefix=".quorate-", dir=_nearest(folder)):
            return
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        raise UsageError(
            f"--output: {folder} cannot be made: {why}; name a folder that you may write"
        ) from error


def lacking_room(folder: Path, bytes_max: int) -> str:
    """Returns a sentence if the largest output would not fit on the folder's disk, or ""."""
    free = shutil.disk_usage(_nearest(folder)).free
    if free >= bytes_max:
        return ""
    return (
        f"the output may have {size_text(bytes_max)}, and the disk of {folder} has "
        f"{size_text(free)} free; what does not fit is kept for you for some days"
    )


def _nearest(folder: Path) -> Path:
    parent = folder.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return parent
