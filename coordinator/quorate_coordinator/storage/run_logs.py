"""What programs of runs wrote, in memory: the first MiB and the last 64 KiB of each execution.

There are limits for each client and in total. Two files have the same for the next process. It is
never part of a result.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.files import FILE_MODE

HEAD_BYTES_MAX = 1 << 20
TAIL_BYTES = 64 << 10
WRITERS_MAX = 4  # executions of one run whose text is kept: the newest
CLIENT_BYTES_MAX = 16 << 20
ALL_BYTES_MAX = 128 << 20
FILE_BYTES_MAX = 64 << 20
COPIED_BYTES = 256 << 10  # copied into a new file with each piece, so that no piece waits long
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
    """What one execution of a run wrote, from position `at` of its output on."""

    client: Address
    job_id: Hash32
    assignment_hash: Hash32
    at: int
    text: bytes


_PIECE: Packed[Piece] = Packed(Piece)


class LogFile:
    """Pieces of log text on disk. When the newer file is full, it becomes the older one, and what
    is still in memory is copied out of it, a little with each piece. So text of one client does not
    push out that of others.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Each of the two files holds `bytes_max` bytes, and what is copied into it."""
        self._newer, self._older, self._bytes_max = path, path.with_suffix(".older"), bytes_max
        self._file, self._size, self._is_writable = CLOSED, 0, True
        self._open()

    @property
    def is_full(self) -> bool:
        return self._size > self._bytes_max

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

    def begin(self) -> bool:
        """Begins a new file. False if the disk takes none."""
        try:
            full = self._file
            self._newer.replace(self._older)
            self._open()
            os.close(full)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def rewrite(self, pieces: Iterable[Piece]) -> bool:
        """Replaces both files by one that holds `pieces`. False if the disk takes none."""
        fresh = self._newer.with_suffix(".fresh")
        try:
            fresh.touch(FILE_MODE)
            with fresh.open("wb") as file:
                file.writelines(map(_framed, pieces))
            os.close(self._file)
            fresh.replace(self._newer)
            self._older.unlink(missing_ok=True)
            self._open()
        except OSError as error:
            self._failed(error)
            return False
        self._size = 0
        return True

    def add(self, piece: Piece, is_copy: bool = False) -> None:
        """The process may be killed right after it, but not the machine."""
        data = _framed(piece)
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += 0 if is_copy else len(data)
            self._is_writable = True
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        os.close(self._file)
        self._file = CLOSED

    def _failed(self, error: OSError) -> None:
        """Jobs go on without it."""
        if self._is_writable and self._file != CLOSED:
            log.error("log text of runs is in memory only: %s: %s", self._newer, error)
        self._is_writable = False

    def _open(self) -> None:
        self._file = os.open(self._newer, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        self._size = os.fstat(self._file).st_size


def _framed(piece: Piece) -> bytes:
    body = _PIECE.encode(piece)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


@dataclass(slots=True)
class Text:
    """What is kept of one execution's output. The tail begins at `tail_at`, if there is one."""

    assignment_hash: Hash32
    head: bytes | bytearray = b""
    tail: bytearray | None = None
    tail_at: int = 0

    def __len__(self) -> int:
        return len(self.head) + (len(self.tail) if self.tail is not None else 0)

    @property
    def end(self) -> int:
        return len(self.head) if self.tail is None else self.tail_at + len(self.tail)

    def add(self, at: int, data: bytes) -> None:
        """What is known already is skipped: a provider sends its text again after a crash."""
        if at <= len(self.head) < HEAD_BYTES_MAX:
            self._add_to_head(data[len(self.head) - at :][: HEAD_BYTES_MAX - len(self.head)])
        known = len(self.head) - at
        if known > 0:
            at, data = len(self.head), data[known:]
        if data:
            self._add_to_tail(at, data)

    def after(self, position: int) -> tuple[int, bytes]:
        """Returns (how many bytes are missing there, the text behind them); b"" at the end."""
        if position < len(self.head):
            return 0, bytes(self.head[position:])
        if self.tail is None or position >= self.end:
            return 0, b""
        start = max(position, self.tail_at)
        text = bytes(self.tail[start - self.tail_at :])
        if start == position:
            return 0, text
        letter = next((at for at in range(min(4, len(text))) if text[at] & 0xC0 != 0x80), 0)
        return start + letter - position, text[letter:]

    def pieces(self) -> list[tuple[int, bytes]]:
        tail = [] if self.tail is None else [(self.tail_at, bytes(self.tail))]
        return [(0, bytes(self.head)), *tail]

    def _add_to_head(self, data: bytes) -> None:
        if isinstance(self.head, bytes) and len(self.head) + len(data) > LINES_BYTES_MAX:
            self.head = bytearray(self.head)
        self.head += data
        if self.tail is not None and self.tail_at < len(self.head):
            self.tail = None  # the sender repeats it

    def _add_to_tail(self, at: int, data: bytes) -> None:
        """Text that does not touch the tail begins it again: the sender repeats its end."""
        if self.tail is None or not self.tail_at - len(data) <= at <= self.end:
            self.tail, self.tail_at = bytearray(), at
        elif at < self.tail_at:
            self.tail, self.tail_at = bytearray(data[: self.tail_at - at]) + self.tail, at
        self.tail += data[self.end - at :]
        cut = max(0, len(self.tail) - TAIL_BYTES)
        del self.tail[:cut]
        self.tail_at += cut


@dataclass(slots=True)
class RunLogs:
    """Of a client that has too much the oldest text is dropped; so it is of all together."""

    # by client, the oldest first; of each run the executions that wrote, in order
    texts_of: dict[Address, dict[Hash32, tuple[Text, ...]]] = field(default_factory=dict)
    client_of: dict[Hash32, Address] = field(default_factory=dict)  # of all runs, the oldest first
    bytes_of: dict[Address, int] = field(default_factory=dict)
    bytes_in_all: int = 0
    file: LogFile | None = None
    to_copy: deque[Hash32] = field(default_factory=deque)  # runs of the older file

    @classmethod
    def open(cls, path: Path) -> "RunLogs":
        logs, file = cls(), LogFile(path, FILE_BYTES_MAX)
        for piece in file.pieces():
            logs.add(piece)
        logs.file = file
        kept = (piece for job_id in logs.client_of for piece in logs.pieces(job_id))
        if not file.rewrite(kept):
            logs.to_copy.extend(logs.client_of)
        return logs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, piece: Piece) -> None:
        if not piece.text:
            return
        client = self.client_of.setdefault(piece.job_id, piece.client)
        runs = self.texts_of.setdefault(client, {})
        if piece.job_id not in runs:
            self._count(client, TEXT_BYTES)
        before = runs.get(piece.job_id, ())
        after = _with_writer(before, piece.assignment_hash)
        runs[piece.job_id] = after
        size = sum(map(len, before))
        text = next(item for item in after if item.assignment_hash == piece.assignment_hash)
        text.add(piece.at, piece.text)
        self._count(client, sum(map(len, after)) - size)
        if self.file is not None:
            self.file.add(piece)
            self._copy(self.file)
        while self.bytes_of.get(client, 0) > CLIENT_BYTES_MAX:
            self._drop(next(iter(self.texts_of[client])))
        while self.bytes_in_all > ALL_BYTES_MAX:
            self._drop(next(iter(self.client_of)))

    def texts(self, job_id: Hash32) -> tuple[Text, ...]:
        client = self.client_of.get(job_id)
        return () if client is None else self.texts_of[client][job_id]

    def pieces(self, job_id: Hash32) -> Iterator[Piece]:
        for text in self.texts(job_id):
            for at, data in text.pieces():
                yield Piece(self.client_of[job_id], job_id, text.assignment_hash, at, data)

    def _copy(self, file: LogFile) -> None:
        """Copies some of the older file's runs; once it has all, a full file becomes the older."""
        if not self.to_copy and file.is_full and file.begin():
            self.to_copy.extend(self.client_of)
        left = COPIED_BYTES
        while self.to_copy and left > 0:
            for piece in self.pieces(self.to_copy.popleft()):
                file.add(piece, is_copy=True)
                left -= len(piece.text) + TEXT_BYTES

    def _drop(self, job_id: Hash32) -> None:
        client = self.client_of.pop(job_id)
        gone = self.texts_of[client].pop(job_id)
        if not self.texts_of[client]:
            del self.texts_of[client]
        self._count(client, -TEXT_BYTES - sum(map(len, gone)))

    def _count(self, client: Address, more: int) -> None:
        self.bytes_in_all += more
        self.bytes_of[client] = self.bytes_of.get(client, 0) + more
        if not self.bytes_of[client]:
            del self.bytes_of[client]


def _with_writer(texts: tuple[Text, ...], assignment_hash: Hash32) -> tuple[Text, ...]:
    if any(item.assignment_hash == assignment_hash for item in texts):
        return texts
    return (*texts, Text(assignment_hash))[-WRITERS_MAX:]
