"""Log text of runs, in memory, with limits for each run, each client and in total. Two files have
the newest text for the next process. It is never part of a result.
"""

import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.files import FILE_MODE

RUN_BYTES_MAX = 1 << 20
CLIENT_BYTES_MAX = 16 << 20
ALL_BYTES_MAX = 128 << 20
FILE_BYTES_MAX = 64 << 20
TAIL_BYTES = (
    4 << 10
    # kept of the end of a text that was cut: the last lines say why a program failed, or why its
    # files were refused
)
TEXT_BYTES = 512  # added to each text's size: a million runs of one byte take more than a megabyte
LINES_BYTES_MAX = (
    4 << 10
    # a text up to this size is stored as plain bytes, which take little memory: most runs log a
    # few lines
)
LENGTH_BYTES = 4
CLOSED = -1
log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """What one execution of a run wrote."""

    client: Address
    job_id: Hash32
    assignment_hash: Hash32
    text: bytes


_PIECE: Packed[Piece] = Packed(Piece)


class LogFile:
    """Pieces of log text on disk. When the newer file is full, it becomes the older one."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Each of the two files holds `bytes_max` bytes, and the piece that passes this bound."""
        self._newer, self._older, self._bytes_max = path, path.with_suffix(".older"), bytes_max
        self._file, self._size, self._is_writable = CLOSED, 0, True
        self._open()

    def pieces(self) -> Iterator[Piece]:
        """A piece that was not written whole is cut off."""
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
        """The process may be killed right after it, but not the machine."""
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
            if self._is_writable and self._file != CLOSED:
                log.error("log text of runs is in memory only: %s: %s", self._newer, error)
            self._is_writable = False

    def close(self) -> None:
        os.close(self._file)
        self._file = CLOSED

    def _open(self) -> None:
        self._file = os.open(self._newer, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        self._size = os.fstat(self._file).st_size


@dataclass(slots=True)
class _Long:
    text: bytearray
    left_out: int = 0  # bytes dropped between text and tail
    tail: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.text) + len(self.tail)

    def add(self, data: bytes) -> None:
        room = RUN_BYTES_MAX - len(self.text)
        if not self.tail and len(data) <= room:
            self.text += data
            return
        if not self.tail:
            taken = data[:room].decode(errors="ignore").encode()
            self.text += taken
            data = data[len(taken) :]
        self.tail += data
        cut = max(0, len(self.tail) - TAIL_BYTES)
        while 0 < cut < len(self.tail) and self.tail[cut] & 0xC0 == 0x80:
            cut += 1
        del self.tail[:cut]
        self.left_out += cut


@dataclass(slots=True)
class RunLogs:
    """Of a client that has too much the oldest text is dropped; so it is of all together."""

    # by client, the oldest first
    texts_of: dict[Address, dict[Hash32, bytes | _Long]] = field(default_factory=dict)
    client_of: dict[Hash32, Address] = field(default_factory=dict)  # of all runs, the oldest first
    bytes_of: dict[Address, int] = field(default_factory=dict)
    bytes_in_all: int = 0
    file: LogFile | None = None
    # of each run: where the text of an execution starts, and its assignment
    writers: dict[Hash32, tuple[tuple[int, Hash32], ...]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "RunLogs":
        logs, file = cls(), LogFile(path, FILE_BYTES_MAX)
        for piece in file.pieces():
            logs.add(*piece[:3], piece.text.decode(errors="replace"))
        logs.file = file
        return logs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, client: Address, job_id: Hash32, assignment_hash: Hash32, text: str) -> None:
        """Beyond 1 MiB a run's log is cut in the middle: its last lines are kept."""
        if not text:
            return
        data = text.encode(errors="replace")
        if self.file is not None:
            self.file.add(Piece(client, job_id, assignment_hash, data))
        written = self.writers.get(job_id, ())
        if not written or written[-1][1] != assignment_hash:
            start = len(self.read(job_id, 0))
            self.writers[job_id] = (*written, (start, assignment_hash))
        owner = self.client_of.setdefault(job_id, client)
        texts = self.texts_of.setdefault(owner, {})
        kept = texts.get(job_id)
        before = -TEXT_BYTES if kept is None else len(kept)
        if kept is None or isinstance(kept, bytes):
            kept = kept + data if kept else data
            if len(kept) > LINES_BYTES_MAX:
                whole, kept = kept, _Long(bytearray())
                kept.add(whole)
            texts[job_id] = kept
        else:
            kept.add(data)
        self._count(owner, len(kept) - before)
        while self.bytes_of.get(owner, 0) > CLIENT_BYTES_MAX:
            self._drop(next(iter(self.texts_of[owner])))
        while self.bytes_in_all > ALL_BYTES_MAX:
            self._drop(next(iter(self.client_of)))

    def read(self, job_id: Hash32, start: int) -> bytes:
        found = self._find(job_id)
        return bytes(found.text[start:]) if isinstance(found, _Long) else found[start:]

    def pieces(self, job_id: Hash32, start: int) -> list[tuple[Hash32, bytes]]:
        """(assignment, what its execution wrote), in order, up to where it was cut."""
        text, written = self.read(job_id, start), self.writers.get(job_id, ())
        ends = [at for at, _ in written[1:]] + [start + len(text)]
        found = [
            (name, text[max(0, begin - start) : max(0, end - start)])
            for (begin, name), end in zip(written, ends, strict=False)
        ]
        return [(name, data) for name, data in found if data]

    def last_writer(self, job_id: Hash32) -> Hash32 | None:
        written = self.writers.get(job_id)
        return written[-1][1] if written else None

    def ending(self, job_id: Hash32) -> bytes:
        """How many bytes were left out, and the last lines. Empty for a text that was not cut."""
        found = self._find(job_id)
        if not isinstance(found, _Long) or not found.tail:
            return b""
        mark = b"\n[%d bytes were left out here]\n" % found.left_out if found.left_out else b""
        return mark + bytes(found.tail)

    def _find(self, job_id: Hash32) -> bytes | _Long:
        client = self.client_of.get(job_id)
        return self.texts_of[client][job_id] if client is not None else b""

    def _drop(self, job_id: Hash32) -> None:
        client = self.client_of.pop(job_id)
        self.writers.pop(job_id, None)
        gone = self.texts_of[client].pop(job_id)
        if not self.texts_of[client]:
            del self.texts_of[client]
        self._count(client, -TEXT_BYTES - len(gone))

    def _count(self, client: Address, more: int) -> None:
        self.bytes_in_all += more
        self.bytes_of[client] = self.bytes_of.get(client, 0) + more
        if not self.bytes_of[client]:
            del self.bytes_of[client]
