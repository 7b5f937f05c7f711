"""Makes the sources of a sandbox's mounts reachable for the user that bubblewrap runs as."""

import ctypes
import os

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 4096, 16384, 1 << 18, 2, 4
LIBC = ctypes.CDLL(None, use_errno=True)


def mount_sources(stage: str, sources: list[str]) -> None:
    """Mounts the sources as `stage`/0, 1, ... in a mount namespace of this process.

    The user that makes the sandbox may not enter the daemon's private folders. The namespace
    ends with the process, so no mount is left behind. Raises OSError.
    """
    _check(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
    _check(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "/")
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    options = b"size=1m,nr_inodes=1024,mode=0755"
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    _check(LIBC.mount(b"tmpfs", os.fsencode(stage), b"tmpfs", flags, options), stage)
    for index, (source, descriptor) in enumerate(zip(sources, opened, strict=True)):
        target = f"{stage}/{index}"
        opened_source = f"/proc/self/fd/{descriptor}"
        if os.path.isdir(opened_source):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        bind = ctypes.c_ulong(MS_BIND)
        _check(LIBC.mount(opened_source.encode(), os.fsencode(target), None, bind, None), source)
        os.close(descriptor)


def _check(result: int, what: str) -> None:
    """Raises the OSError of the last call if it failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {what}")
