"""Log text of runs on disk, so that a coordinator that is killed has it again.

Two files hold the newest text: when the newer one is full, it becomes the older one. The text is
never part of a result, so nothing waits for the disk, and a disk that is full takes none.
"""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.files import FILE_MODE

LENGTH_BYTES = 4
log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """What one execution of a run wrote."""

    client: Address
    job_id: Hash32
    assignment_hash: Hash32
    text: bytes


_PIECE: Packed[Piece] = Packed(Piece)


class LogFile:
    """Pieces of log text in the order in which they came."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Each of the two files holds `bytes_max` bytes, and the piece that passes this bound."""
        self._newer, self._older, self._bytes_max = path, path.with_suffix(".older"), bytes_max
        self._is_writable = True
        self._open()

    def pieces(self) -> Iterator[Piece]:
        """Yields what is stored. A piece that was not written whole is cut off."""
        for path in (self._older, self._newer):
            data, at = path.read_bytes() if path.exists() else b"", 0
            while at + LENGTH_BYTES <= len(data):
                end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
                try:
                    yield _PIECE.decode(data[at + LENGTH_BYTES : end])
                except Refused:
                    break  # not re-raised: the process was killed while it wrote
                at = end
            if at < len(data):
                os.truncate(path, at)

    def add(self, piece: Piece) -> None:
        """Appends a piece. The process may be killed right after it, but not the machine."""
        body = _PIECE.encode(piece)
        data = len(body).to_bytes(LENGTH_BYTES, "big") + body
        try:
            if self._size > self._bytes_max:
                full = self._file
                self._newer.replace(self._older)
                self._open()
                os.close(full)
            if os.write(self._file, data) < len(data):
                os.ftruncate(self._file, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(data)
            self._is_writable = True
        except OSError as error:
            # Not re-raised: jobs go on without it.
            if self._is_writable:
                log.error("log text of runs is in memory only: %s: %s", self._newer, error)
            self._is_writable = False

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self._newer, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        self._size = os.fstat(self._file).st_size
