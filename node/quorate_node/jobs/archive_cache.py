"""Caches the metadata of image archives, because reading a large archive takes seconds."""

import threading
from pathlib import Path

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo
from quorate_node.executors.base.keyed_locks import KeyedLocks
from quorate_protocol.refusals import Code, Refused

_INFOS_MAX = 256


class ArchiveInfoCache:
    """Metadata by path, size and time of change. Blocking; safe between threads."""

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
