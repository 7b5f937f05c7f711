"""Keeps the first MiB and the last 64 KiB of a program's output in files.

The file itself holds the beginning. What follows lies in files beside it that are named by their
position in the output (`log.1048576`); only the newest two stay. No byte is written twice, so a
kill at any time leaves a log that can be read.

The supervisor of a lease imports this module, so it needs the standard library only.
"""

import os
from collections.abc import Iterator
from pathlib import Path

HEAD_BYTES = 1 << 20
TAIL_BYTES = 64 << 10
FILES_KEPT = 2  # together at least TAIL_BYTES, once there are two


class KeptLog:
    """Writes one log, and goes on after what is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = _starts(path) or [0]
        self._file = self._opened(self._starts[-1])
        self.end = self._starts[-1] + os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        """A full disk loses log text and never the job."""
        try:
            while data:
                start = self._starts[-1]
                left = start + (TAIL_BYTES if start else HEAD_BYTES) - self.end
                if left:
                    written = os.write(self._file, data[:left])
                    self.end += written
                    data = data[written:]
                else:
                    self._begin_file()
        except OSError:
            return  # not re-raised: the program goes on without this text

    def close(self) -> None:
        os.close(self._file)

    def _begin_file(self) -> None:
        fresh = self._opened(self.end)
        os.close(self._file)
        self._file = fresh
        self._starts.append(self.end)
        tails = [start for start in self._starts if start]
        for start in tails[:-FILES_KEPT]:
            _file(self._path, start).unlink(missing_ok=True)
            self._starts.remove(start)

    def _opened(self, start: int) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(_file(self._path, start), flags, 0o600)


def read_piece(path: Path, at: int) -> tuple[int, bytes]:
    """Returns (its position, the first kept text from `at` on); the text is empty at the end."""
    starts = _starts(path)
    if at >= HEAD_BYTES and starts:
        end = starts[-1] + _size(_file(path, starts[-1]))
        at = max(at, end - TAIL_BYTES)
    for start in starts:
        try:
            with _file(path, start).open("rb") as file:
                file.seek(max(0, at - start))
                text = file.read(TAIL_BYTES)
        except FileNotFoundError:
            continue  # newer text has replaced it
        if text:
            return max(at, start), text
    return at, b""


def read_all(path: Path) -> Iterator[tuple[int, bytes]]:
    at = 0
    while True:
        at, text = read_piece(path, at)
        if not text:
            return
        yield at, text
        at += len(text)


def _starts(path: Path) -> list[int]:
    """Returns where the files of a log begin, in order."""
    names = (item.name.removeprefix(f"{path.name}.") for item in path.parent.glob(f"{path.name}.*"))
    tails = sorted(int(name) for name in names if name.isdecimal())
    return [0, *tails] if path.exists() else tails


def _file(path: Path, start: int) -> Path:
    return path.with_name(f"{path.name}.{start}") if start else path


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
