"""What the machine said no to, as a sentence with its remedy: a full disk, a folder that may not
be written.
"""

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
"""A file that is named and cannot be used as it is; other errors of the system are bugs until somebody meets them."""


def sentence_of(error: BaseException) -> str:
    """What is wrong with which file and what to type; "" for what is not the machine's doing.
    Looks into groups and causes.
    """
    if isinstance(error, BaseExceptionGroup):
        return next((said for said in map(sentence_of, error.exceptions) if said), "")
    if not isinstance(error, OSError):
        return ""
    name = "" if error.filename is None else str(error.filename)
    if error.errno in FULL:
        place = str(Path(name).parent) if name else "."
        return (
            f"the disk is full{f' ({name})' if name else ''}; see `df -h {place}`, free some, "
            f"and run the same command again"
        )
    if error.errno in CLOSED and name:
        return (
            f"{name}: {error.strerror}; see `ls -ld {Path(name).parent}`, or name a folder "
            f"that you may write (--home, --dir, --out)"
        )
    return ""
