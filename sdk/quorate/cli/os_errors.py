"""Explains operating system errors with a remedy: a full disk, or a file that cannot be used."""

import errno
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)
"""Errors about a named file. Other system errors count as bugs."""


def explain_os_error(error: BaseException) -> str:
    """Returns what is wrong with which file and what to type, or "" for other errors. Searches
    groups.
    """
    if isinstance(error, BaseExceptionGroup):
        return next((said for said in map(explain_os_error, error.exceptions) if said), "")
    if not isinstance(error, OSError):
        return ""
    name = "" if error.filename is None else str(error.filename)
    if error.errno in FULL:
        place = str(Path(name).parent) if name else "."
        return (
            f"the disk is full{f' ({name})' if name else ''}; check `df -h {place}`, free "
            "some space, and run the same command again"
        )
    if error.errno in CLOSED and name:
        return (
            f"{name}: {error.strerror}; check `ls -ld {Path(name).parent}`, or choose a "
            "folder that you may write (--home, --dir, --out)"
        )
    return ""
