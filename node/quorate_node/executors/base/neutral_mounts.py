"""Mounts a file or folder so that the mount's record does not name where the source lies.

Every process reads /proc/self/mountinfo, and a bind mount shows there the path of its source: the
owner's folders and the ids of leases. An overlay of one folder shows the descriptor by which the
folder was opened. Only the standard library is used here, because supervisors run without others.
"""

import ctypes
import os

MS_NOSUID, MS_NODEV, MS_BIND = 2, 4, 4096
MNT_DETACH = 2
LIBC = ctypes.CDLL(None, use_errno=True)


class OpenedSource:
    """A file or folder that will be mounted, opened before anything hides its path."""

    def __init__(self, path: str) -> None:
        self._name = "" if os.path.isdir(path) else os.path.basename(path)
        folder = os.path.dirname(path) if self._name else path
        self._folder = os.open(folder, os.O_PATH | os.O_CLOEXEC)

    @property
    def is_folder(self) -> bool:
        return not self._name

    def bind(self, target: str) -> None:
        """Mounts it at the existing `target`, where its path can be read. Raises OSError."""
        _mount(os.fsencode(f"{_opened(self._folder)}/{self._name}"), target, None, MS_BIND, b"")

    def mount_neutral(self, target: str, stage: str) -> None:
        """Mounts it nosuid and nodev; the caller makes it read-only. `stage` is a folder for what
        this needs beside it. Raises OSError where the kernel or the file system has no overlays.
        """
        beside = f"{stage}/{os.path.basename(target)}"
        passing = target if self.is_folder else f"{beside}/passing"
        for folder in (f"{beside}/upper", f"{beside}/work", passing):
            os.makedirs(folder, exist_ok=True)
        self._overlay(passing, f"{beside}/upper", f"{beside}/work")
        if self.is_folder:
            return
        try:
            _mount(os.fsencode(f"{passing}/{self._name}"), target, None, MS_BIND, b"")
        finally:
            LIBC.umount2(os.fsencode(passing), MNT_DETACH)

    def close(self) -> None:
        os.close(self._folder)

    def _overlay(self, target: str, upper: str, work: str) -> None:
        """Writable, as an engine's image: else a program would meet other errors."""
        opened = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (upper, work)]
        try:
            places = zip(("lowerdir", "upperdir", "workdir"), (self._folder, *opened), strict=True)
            options = ",".join(f"{name}={_opened(place)}" for name, place in places)
            _mount(b"overlay", target, b"overlay", MS_NOSUID | MS_NODEV, options.encode())
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _opened(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _mount(source: bytes, target: str, kind: bytes | None, flags: int, options: bytes) -> None:
    made = LIBC.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), options)
    if made != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {target}")
