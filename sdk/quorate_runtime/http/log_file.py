"""Reads and writes the file of a coordinator's public log."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation.log_document import (
    LINE_BYTES_MAX,
    LINES_MAX,
    FoldedLog,
    folded,
    head_of,
)
from quorate_protocol.units import Hash32
from quorate_runtime.files import write_atomic
from quorate_runtime.keys.crypto import recover


def head_line(file: BinaryIO) -> ReputationHead:
    return head_of(_line(file))


def folded_file(
    head: ReputationHead, file: BinaryIO, pinned: Mapping[int, Hash32] | None = None
) -> FoldedLog:
    return folded(head, lines_of(file), recover, pinned)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines from here to the end of a file, without their ends. Raises Refused if one is
    too long, or if there are too many.
    """
    for _ in range(LINES_MAX + 1):
        line = _line(file)
        if not line:
            return
        yield line
    raise Refused(Code.MALFORMED, f"log: it has more than {LINES_MAX} lines")


def document(head: ReputationHead, body: BinaryIO) -> bytes:
    body.seek(0)
    return canonical.encode(head) + b"\n" + body.read()


def write_file(path: Path, head: ReputationHead, body: BinaryIO) -> None:
    """Writes a log's document, whole or not at all. Raises OSError."""
    write_atomic(path, document(head, body))


def _line(file: BinaryIO) -> bytes:
    line = file.readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        raise Refused(Code.OVERSIZE, f"log: a line is longer than {LINE_BYTES_MAX} bytes")
    return line.rstrip(b"\n")
