"""Collects outputs that only the engine can read, from the engine's tar stream of the folder.

The rules and limits are those of `outputs`. The engine sends sparse files at their full apparent
size, and links as links. The tar module itself extracts nothing.
"""

import io
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path

from quorate_node.executors.base.outputs import Allowance, OutputCaps, new_directory
from quorate_protocol.refusals import Code, Refused

_COPY_BYTES = 1 << 20
_READ_MAX = 4 << 20


def collect_tar(chunks: Iterator[bytes], destination: Path, caps: OutputCaps) -> None:
    """Complete or not at all."""
    with new_directory(destination) as partial:
        allowance = Allowance(caps)
        try:
            with tarfile.open(fileobj=_Stream(chunks), mode="r|") as archive:
                for member in archive:
                    try:
                        _take(archive, member, partial, allowance)
                    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
                        raise Refused(
                            Code.MALFORMED,
                            f"{member.name[:200]!r}: appears twice, or before its folder",
                        ) from error
                    # the module would keep every header in memory
                    archive.members = []  # type: ignore[attr-defined]
        except (tarfile.TarError, EOFError, RecursionError, UnicodeError) as error:
            raise Refused(Code.MALFORMED, f"outputs cannot be read: {error}") from error
        partial.rename(destination)


class _Stream(io.RawIOBase):
    """Chunks as a file, in bounded reads: the tar module reads a header in one piece."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = b""

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        if size < 0 or size > _READ_MAX:
            raise Refused(Code.MALFORMED, "an extended tar header is larger than 4 MiB")
        parts = [self._buffer]
        held = len(self._buffer)
        while held < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            held += len(chunk)
        data = b"".join(parts)
        self._buffer = data[size:]
        return data[:size]


def _take(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, allowance: Allowance
) -> None:
    parts = member.name.strip("/").split("/")[1:]  # the first is the folder itself
    if not parts:
        return
    path = "/".join(parts)
    allowance.add_entry(path, parts[-1], len(parts))
    for part in parts[:-1]:
        if part in ("", ".", ".."):
            raise Refused(Code.MALFORMED, f"{path[:200]}: leads out of the outputs")
    if member.isdir():
        (target / path).mkdir()
    elif member.isreg() and not member.issparse():
        allowance.check_size(path, member.size)
        file = archive.extractfile(member)
        assert file is not None, "regular members have content"
        with (target / path).open("xb") as out:
            while chunk := file.read(_COPY_BYTES):
                allowance.add_copied(path, len(chunk))
                out.write(chunk)
    elif member.islnk():
        _copy_linked(target, path, member.linkname, allowance)
    else:
        raise Refused(
            Code.MALFORMED,
            f"{path[:200]}: is a link or special file; only files and directories can be outputs",
        )


def _copy_linked(target: Path, path: str, link: str, allowance: Allowance) -> None:
    """Copies the second name of one file from the first, which was written before."""
    first = posixpath.normpath("/".join(link.strip("/").split("/")[1:]))
    if first.startswith(("..", "/")) or not (target / first).is_file():
        raise Refused(Code.MALFORMED, f"{path[:200]}: links to something outside the outputs")
    with (target / first).open("rb") as source, (target / path).open("xb") as out:
        while chunk := source.read(_COPY_BYTES):
            allowance.add_copied(path, len(chunk))
            out.write(chunk)
