"""Measures the output folder of a running program, which may change it meanwhile."""

import os
import stat
from contextlib import suppress
from typing import Any

DEPTH_MAX = 64  # of directories; collecting the outputs has the same bound


def exceeds(folder: str, bytes_max: int, inodes_max: int) -> bool:
    """Returns whether a tree has more bytes, files or levels than allowed.

    It never follows links, even if the program replaces a directory by one meanwhile.
    """
    total = inodes = 0
    stack: list[tuple[int, Any]] = []
    try:
        stack.append(_opened(folder, None))
        while stack:
            handle, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                os.close(handle)
                continue
            inodes += 1
            total += _disk_bytes(entry)
            if inodes > inodes_max or total > bytes_max or len(stack) > DEPTH_MAX:
                return True
            if entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError, NotADirectoryError):  # the program removed it
                    stack.append(_opened(entry.name, handle))
        return total > bytes_max
    except PermissionError:
        # The program closed the directory again just after we opened it, so it hides something.
        return True
    finally:
        for handle, entries in stack:
            entries.close()
            os.close(handle)


def _opened(name: str, parent: int | None) -> tuple[int, Any]:
    """Returns (descriptor, entries) of a directory.

    The program runs as our own user, and could hide files in a directory that it closes to itself.
    So this restores the permissions first.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags | os.O_PATH, dir_fd=parent)
    try:
        mode = os.fstat(handle).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
        found = os.open(f"/proc/self/fd/{handle}", os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    return found, os.scandir(found)


def _disk_bytes(entry: "os.DirEntry[str]") -> int:
    """Returns the bytes on disk of a directory entry; 0 for a directory."""
    try:
        return (
            0
            if entry.is_dir(follow_symlinks=False)
            else entry.stat(follow_symlinks=False).st_blocks * 512
        )
    except OSError:
        return 0  # it was removed before the read
