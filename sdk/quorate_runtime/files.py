"""Small files that are replaced whole: after a crash a reader finds the old file or the new one."""

import os
from pathlib import Path


def write_atomic(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replaces the file at `path` by one that holds `data`. It is durable when the call returns.

    The folder must exist. The file gets `mode` less the process's umask, as with `open`. A file
    must have only one writer at a time, because the temporary file's name is fixed. So the next
    call removes what a crash left. Raises OSError as the system does. Then the old file is
    unchanged, except if only the last sync, the folder's, failed.
    """
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the folder's names durable: files that were made, renamed or deleted in it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
