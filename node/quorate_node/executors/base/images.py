"""What all executors do alike with an image: its metadata, and its declared volumes.

For each declared `VOLUME` an engine makes a folder on the owner's disk without a size limit. The
create request cannot prevent that, because the engine merges its volumes with the image's. So each
executor mounts a memory file system of limited size at the path, before the engine makes its
folder. That hides the image's files at the path; the executor does not copy them. Every sandbox
does the same, because results must not differ.
"""

import posixpath
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo
from quorate_protocol.refusals import Code, Refused

VOLUMES_MAX = 16
PATH_MAX = 255
_REMEDY = "build the image without it, or name an ordinary folder such as /data"
_PLACES = ("/scratch", "/tmp", "/outputs")  # every sandbox mounts these already
_TAKEN = (
    "/proc",
    "/sys",
    "/dev",
    "/inputs",
    "/outputs",
    "/scratch",
    "/sbin/docker-init",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
)


def volumes_to_mount_over(volumes: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    """The volumes, parents first; `inputs` are targets. Raises Refused(UNSUPPORTED)."""
    if len(volumes) > VOLUMES_MAX:
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {len(volumes)} are declared, at most {VOLUMES_MAX}; {_REMEDY}",
        )
    found = {_clean(path) for path in volumes}
    return tuple(
        sorted(path for path in found if path not in _PLACES and not _is_taken(path, inputs))
    )


def _is_taken(path: str, inputs: Sequence[str]) -> bool:
    """Raises Refused for a path that jobs need."""
    if path in inputs:
        return True
    if any(_is_below(path, taken) or _is_below(taken, path) for taken in _TAKEN):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {path[:200]!r} would hide a folder that every job needs; {_REMEDY}",
        )
    if any(_is_below(path, target) for target in inputs):
        raise Refused(
            Code.UNSUPPORTED, f"image: Volumes: {path[:200]!r} lies inside an input; {_REMEDY}"
        )
    return False


def _clean(path: str) -> str:
    """Engines keep `/data/` and `//data` as declared, and mount both at /data."""
    is_plain = (
        path.startswith("/")
        and ".." not in path.split("/")
        and len(path) <= PATH_MAX
        and path.isprintable()
    )
    if not is_plain or any(mark in path for mark in ":,\\"):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: Volumes: {path[:200]!r} is not a plain absolute path; {_REMEDY}",
        )
    clean = posixpath.normpath("/" + path.lstrip("/"))
    if clean == "/":
        raise Refused(
            Code.UNSUPPORTED, f"image: Volumes: {path[:200]!r} is the whole image; {_REMEDY}"
        )
    return clean


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + "/")


class KeyedLocks:
    """Locks between threads, by key. One that no thread holds or waits for is forgotten."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(key, _Lock())
        with lock.inner:
            yield


class _Lock:
    """A lock that can have weak references, unlike those of the standard library."""

    def __init__(self) -> None:
        self.inner = threading.Lock()


_INFOS_MAX = 256


class ArchiveInfoCache:
    """Metadata by path, size and time of change: to read a large archive takes seconds. Blocking;
    safe between threads.
    """

    def __init__(self) -> None:
        self._reading = KeyedLocks()
        self._lock = threading.Lock()
        self._infos: dict[tuple[str, int, int], ImageInfo] = {}

    def of(self, path: Path) -> ImageInfo:
        """Raises Refused(UNKNOWN) without a file, and Refused as `read_archive` does."""
        if not path.is_file():
            raise Refused(Code.UNKNOWN, f"image: no archive {path.name}")
        status = path.stat()
        key = (str(path), status.st_size, status.st_mtime_ns)
        with self._reading.held(str(key)):
            info = self._infos.get(key) or read_archive(path)
            with self._lock:
                if len(self._infos) >= _INFOS_MAX:
                    self._infos.clear()
                self._infos[key] = info
            return info
