"""Makes the sources of a sandbox's mounts reachable for the user that bubblewrap runs as."""

import ctypes
import os

from quorate_node.executors.base.neutral_mounts import OpenedSource

CLONE_NEWNS = 0x20000
OUTPUTS = 1  # the place among the sources that the program writes
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 16384, 1 << 18, 2, 4
LIBC = ctypes.CDLL(None, use_errno=True)


def mount_sources(stage: str, sources: list[str]) -> None:
    """Mounts the sources as `stage`/0, 1, ... in a mount namespace of this process.

    The user that makes the sandbox may not enter the daemon's private folders. The namespace
    ends with the process, so no mount is left behind. Raises OSError.
    """
    _check(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
    _check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "/")
    opened = [OpenedSource(source) for source in sources]
    options = b"size=1m,nr_inodes=1024,mode=0755"
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _check(LIBC.mount(b"tmpfs", os.fsencode(stage), b"tmpfs", flags, options), stage)
    for index, source in enumerate(opened):
        target = f"{stage}/{index}"
        if source.is_folder:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        if index == OUTPUTS or not _is_neutral(source, target, f"{stage}/stage"):
            source.bind(target)
        source.close()


def _is_neutral(source: OpenedSource, target: str, stage: str) -> bool:
    """Mounts a source so that the job cannot read where it lies; False if the kernel cannot."""
    try:
        source.mount_neutral(target, stage)
    except OSError:
        # Not re-raised: some file systems take no overlay. The caller mounts it in another way.
        return False
    return True


def _check(result: int, what: str) -> None:
    """Raises the OSError of the last call if it failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {what}")
