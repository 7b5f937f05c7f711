"""One file lock (flock) per CID: shared while the object is in use, exclusive while it is made or
removed.

The kernel drops a lock when its holder dies, so kill -9 leaves no lock and no timeout is needed.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class FileLock:
    """A held lock. The last holder removes the file, so that the folder does not grow."""

    def __init__(self, path: str | Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def release(self) -> None:
        if self._descriptor < 0:
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        except BlockingIOError:
            # Others still hold it, and the last of them removes the file.
            pass
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def try_lock(path: str | Path, is_shared: bool) -> FileLock | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        is_current = os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except (BlockingIOError, FileNotFoundError):
        # Held, or just removed by its last holder; the caller tries again.
        is_current = False
    except BaseException:
        os.close(descriptor)
        raise
    if not is_current:
        os.close(descriptor)
        return None
    return FileLock(path, descriptor)
