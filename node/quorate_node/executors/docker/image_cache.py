"""Records which images this daemon brought into the engine, and removes the longest unused.

Each image has one small file. The daemon writes it before it loads the image, so that a crash
leaves no image without a record. The file's time of change is the last use. An image that the
engine had before belongs to the owner, and its record counts no bytes. If an image got a name in
the engine, it stays, because somebody else uses it.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.files import write_atomic

KEPT_BYTES_MAX = 64 << 30
MANIFESTS_MAX = 64
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image: engine's id, bytes there, registries' digests, Unix seconds of last use."""

    image: str
    bytes: int
    manifests: tuple[str, ...]
    used: float


class ImageCache:
    """The records below `folder`. Blocking; safe between threads."""

    def __init__(self, folder: Path, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._folder, self.bytes_max = folder, bytes_max
        self._lock = threading.Lock()

    def find(self, manifest: str) -> str | None:
        with self._lock:
            return next((kept.image for kept in self._all() if manifest in kept.manifests), None)

    def all(self) -> list[CachedImage]:
        with self._lock:
            return self._all()

    def record(self, image: str, size: int) -> None:
        with self._lock:
            known = self._read(self._path(image))
            self._write(CachedImage(image, size, known.manifests if known else (), time.time()))

    def name(self, image: str, manifest: str) -> None:
        """An image that this daemon did not load gets a record without bytes."""
        with self._lock:
            known = self._read(self._path(image)) or CachedImage(image, 0, (), 0.0)
            manifests = (*(item for item in known.manifests if item != manifest), manifest)[
                -MANIFESTS_MAX:
            ]
            self._write(CachedImage(image, known.bytes, manifests, time.time()))

    def use(self, image: str) -> None:
        with self._lock:
            if self._path(image).exists():
                os.utime(self._path(image))

    def make_room(self, size: int, image: str, remove: Callable[[str], bool]) -> None:
        """`remove` says whether the engine removed the image. Raises Refused(OVERSIZE) if it can
        never fit, Unavailable if all others are in use.
        """
        if size > self.bytes_max:
            raise Refused(
                Code.OVERSIZE,
                f"image: it has {size} bytes unpacked, all images together have room for "
                f"{self.bytes_max}",
            )
        with self._lock:
            others = [kept for kept in self._all() if kept.image != image]
            total = sum(kept.bytes for kept in others)
            for kept in others:
                if total + size <= self.bytes_max:
                    return
                if kept.bytes and remove(kept.image):
                    self._path(kept.image).unlink(missing_ok=True)
                    total -= kept.bytes
        if total + size > self.bytes_max:
            raise Unavailable(
                f"no room for an image of {size} bytes: the images in use have {total} of "
                f"{self.bytes_max}",
                30.0,
            )

    def forget(self, image: str) -> None:
        with self._lock:
            self._path(image).unlink(missing_ok=True)

    def _all(self) -> list[CachedImage]:
        paths = self._folder.glob(f"*{_SUFFIX}") if self._folder.is_dir() else iter(())
        return sorted(
            (kept for path in paths if (kept := self._read(path))), key=lambda kept: kept.used
        )

    def _path(self, image: str) -> Path:
        return self._folder / f"{image.removeprefix('sha256:')}{_SUFFIX}"

    def _read(self, path: Path) -> CachedImage | None:
        try:
            tree = json.loads(path.read_text())
            return CachedImage(
                f"sha256:{path.stem}",
                int(tree["bytes"]),
                tuple(tree["manifests"]),
                path.stat().st_mtime,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # There is no record, or a crash tore it. The daemon writes the record before it loads
            # the image, so it has loaded nothing.
            return None

    def _write(self, kept: CachedImage) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = json.dumps({"bytes": kept.bytes, "manifests": kept.manifests})
        write_atomic(self._path(kept.image), record.encode())
