"""Keeps unpacked images, each unpacked once, and removes the longest unused.

A start waits for the unpacking of its own image only. Each image is unpacked by a process of its
own: a thread of this one would take turns with the daemon's event loop for every file.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from quorate_content.images.image_info import ImageInfo
from quorate_node.executors.base.images import KeyedLocks
from quorate_node.executors.base.outputs import delete_tree
from quorate_node.executors.sandbox.rootfs import check_room, unpack_apart
from quorate_protocol.refusals import Code, Refused, Unavailable

IMAGES_MAX = 16
BYTES_MAX = 64 << 30  # all unpacked images together, the same bound as in an engine
# An image that was asked for this recently will start soon, although no lease names it yet.
START_SECONDS = 60
_PARTIAL, _DROPPED = ".partial", ".dropped"


class RootfsCache:
    """Unpacked images, one folder per config digest. Safe between threads. `in_use` names folders
    that leases still need.
    """

    def __init__(
        self, home: Path, in_use: Callable[[], frozenset[str]], bytes_max: int = BYTES_MAX
    ) -> None:
        self._home = home
        self._in_use = in_use
        self._bytes_max = bytes_max
        self._unpacking = KeyedLocks()  # by image
        self._making_room = threading.Lock()  # held by those that unpack, while they count bytes
        self._folders = threading.Lock()  # held for a moment, while a folder appears or goes
        self._expected: dict[str, int] = {}  # bytes of images that are being unpacked

    def ensure(self, archive: Path, info: ImageInfo) -> Path:
        """Raises Refused(MALFORMED | UNSUPPORTED | OVERSIZE), Unavailable without room."""
        root = self._home / info.config_digest
        with self._unpacking.held(root.name):
            if not self._use(root):
                self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    self._make_room(root.name, info.unpacked_bytes)
                    self._unpack(archive, info, root)
                finally:
                    self._expected.pop(root.name, None)
        return root

    def _use(self, root: Path) -> bool:
        with self._folders:
            if root.is_dir():
                os.utime(root)
                return True
        return False

    def _unpack(self, archive: Path, info: ImageInfo, root: Path) -> None:
        """While the disk is full it removes the longest unused image, or a disk full of images
        would stop all jobs for ever.
        """
        fresh = root.with_suffix(_PARTIAL)
        while not root.is_dir():
            delete_tree(fresh)
            try:
                check_room(self._home, info.unpacked_bytes)
                unpack_apart(archive, info, fresh)
                os.utime(fresh)
                fresh.rename(root)
            except Unavailable:
                if not self._drop_oldest():
                    raise
            finally:
                delete_tree(fresh)

    def _make_room(self, name: str, size: int) -> None:
        """Removes the longest unused images until `size` more bytes fit, and reserves them."""
        if size > self._bytes_max:
            raise Refused(
                Code.OVERSIZE,
                f"image: it has {size} bytes unpacked, all images together have room for "
                f"{self._bytes_max}",
            )
        with self._making_room:
            while len(self._roots()) + len(self._expected) >= IMAGES_MAX and self._drop_oldest():
                pass
            while (held := self._held_bytes()) + size > self._bytes_max:
                if not self._drop_oldest():
                    raise Unavailable(
                        f"no room for an image of {size} bytes: the images in use have {held} of "
                        f"{self._bytes_max}",
                        30.0,
                    )
            self._expected[name] = size

    def _held_bytes(self) -> int:
        return _disk_bytes(self._roots()) + sum(list(self._expected.values()))

    def _drop_oldest(self) -> bool:
        """False if leases need all of them."""
        with self._folders:
            kept, used = self._in_use(), {root: root.stat().st_mtime for root in self._roots()}
            idle = [
                root
                for root in used
                if root.name not in kept and time.time() - used[root] > START_SECONDS
            ]
            if idle:
                oldest = min(idle, key=used.__getitem__)
                oldest.rename(oldest.with_suffix(_DROPPED))
        for dropped in self._home.glob(f"*{_DROPPED}"):
            delete_tree(dropped)
        return bool(idle)

    def _roots(self) -> list[Path]:
        return [path for path in self._home.iterdir() if path.suffix == ""]


def _disk_bytes(roots: Sequence[Path]) -> int:
    """Measured each time, which takes less time than the unpacking that follows."""
    done = (
        subprocess.run(["du", "-sxB1", "--", *map(str, roots)], check=False, capture_output=True)
        if roots
        else None
    )
    return sum(int(line.split(b"\t")[0]) for line in done.stdout.splitlines()) if done else 0
