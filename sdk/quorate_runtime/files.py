"""Small files that are replaced whole: after a crash a reader finds the old file or the new one.

Homes, and what is in them, are for their owner alone.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PUBLIC_MODE = 0o666
"""Mode of files that others may read, less the umask."""
FULL_BYTES = 256 * 1024
_OTHERS = 0o077
log = logging.getLogger(__name__)


def private_folder(folder: Path) -> None:
    """Makes a home, which only its owner may enter, if it is missing.

    In a home that others may read it narrows the rights of the folder and of the files that lie in
    it, and logs that. It leaves a folder that others write to on purpose, such as /tmp, and logs
    it. Raises OSError if the folder cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    found = folder.stat()
    if not found.st_mode & _OTHERS:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_ISVTX or found.st_uid != os.geteuid():
        log.warning("others may read %s (mode %04o); use a folder of your own", folder, mode)
        return
    try:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                _narrow(Path(entry.path))
        folder.chmod(FOLDER_MODE)
    except OSError as error:
        # It may be a mounted disk without rights.
        log.warning("others may read %s (%s); run: chmod 700 %s", folder, error.strerror, folder)
        return
    log.warning("others could read %s (mode %04o); now only you can", folder, mode)


def is_full(folder: Path, least: int = FULL_BYTES) -> bool:
    """Returns whether the folder's disk has less than `least` bytes of room: by default what a
    small database needs to be opened.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return False  # another error says what is wrong with the folder
    return found.f_bavail * found.f_frsize < least


def private_file(path: Path) -> None:
    """Makes an empty file that only its owner may read, if it is missing. A database that SQLite
    makes gets the umask's rights, and its WAL gets those of the database.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def _narrow(path: Path) -> None:
    mode = path.lstat().st_mode
    if mode & _OTHERS:
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS)


def write_atomic(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Replaces the file at `path` by one that holds `data`. It is durable when the call returns.

    The folder must exist. The file gets `mode` less the process's umask, as with `open`. Programs
    may write it at once; the last one counts. A crash may leave a temporary file. Raises OSError as
    the system does. Then the old file is unchanged, except if only the last sync, the folder's,
    failed.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a write names no file, and people ask which disk is full
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the folder's names durable: files that were made, renamed or deleted in it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def file_lock(path: Path, busy: Exception) -> Iterator[None]:
    """Holds the lock of a file, which it makes with mode 0600. A crash frees the lock. Raises
    `busy` while another program holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        yield
    finally:
        os.close(handle)
