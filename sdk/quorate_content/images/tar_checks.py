"""Opens tar archives from strangers with bounded reads, and checks the names of their members."""

import gzip
import io
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quorate_content.images.image_info import ImageLimits
from quorate_protocol.refusals import Code, Refused

_READ_MAX = 4 << 20


class BoundedReader(io.RawIOBase):
    """A seekable reader that refuses large single reads and positions beyond a bound. The tar
    module reads extended headers whole, and a compressed layer may expand without end.
    """

    def __init__(self, source: IO[bytes], position_max: int, beyond: Refused) -> None:
        self._source = source
        self._position_max = position_max
        self._beyond = beyond

    def read(self, size: int = -1, /) -> bytes:
        """Reads at most 4 MiB at once."""
        if size < 0 or size > _READ_MAX:
            raise Refused(Code.OVERSIZE, "an extended tar header is larger than 4 MiB")
        return self._source.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence != 0 or offset > self._position_max:
            raise self._beyond
        return self._source.seek(offset)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


@contextmanager
def open_archive(path: Path, limits: ImageLimits) -> Iterator[tarfile.TarFile]:
    """Opens the archive and turns every error of the tar module into a refusal."""
    try:
        size = path.stat().st_size
        if size > limits.archive_bytes:
            raise Refused(
                Code.OVERSIZE,
                f"the image archive has {size} bytes; at most {limits.archive_bytes} are allowed",
            )
        truncated = Refused(Code.MALFORMED, "the image archive is truncated")
        with (
            path.open("rb") as file,
            tarfile.open(fileobj=BoundedReader(file, size, truncated), mode="r:") as archive,
        ):
            yield archive
    except FileNotFoundError as error:
        raise Refused(Code.UNKNOWN, f"there is no image archive at {path.name}") from error
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        RecursionError,
        UnicodeError,
        ValueError,
        OverflowError,
    ) as error:
        raise Refused(Code.MALFORMED, f"the image archive cannot be read: {error}") from error


def read_members(
    archive: tarfile.TarFile, limits: ImageLimits, where: str
) -> dict[str, tarfile.TarInfo]:
    """Returns all members by clean name. A duplicate is refused, because two readers could see two
    different archives.
    """
    members: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(archive):
        if count >= limits.members:
            raise Refused(Code.OVERSIZE, f"{where}: more than {limits.members} entries")
        name = checked_name(member.name, where, limits)
        if name in members and not member.isdir():
            raise Refused(Code.MALFORMED, f"{where}: {name!r} occurs twice")
        members[name] = member
    return members


def checked_name(name: str, where: str, limits: ImageLimits) -> str:
    if len(name.encode("utf-8", "surrogateescape")) > limits.path_bytes:
        raise Refused(Code.MALFORMED, f"{where}: a path is longer than {limits.path_bytes} bytes")
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise Refused(Code.MALFORMED, f"{where}: {name[:200]!r} leads out of the archive")
    return clean_name(name)


def clean_name(name: str) -> str:
    return posixpath.normpath(name)


def regular_member(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """Returns the regular file behind a name. `docker save` writes a repeated layer as a link to
    the first one, so one link inside the archive is followed.
    """
    member = members.get(clean_name(name))
    if member is not None and (member.issym() or member.islnk()):
        base = posixpath.dirname(clean_name(name)) if member.issym() else ""
        member = members.get(clean_name(posixpath.join(base, member.linkname)))
    if member is None or not member.isreg() or member.issparse():
        raise Refused(Code.MALFORMED, f"{name[:200]!r} is not a file of the archive")
    return member


def member_bytes(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, bytes_max: int
) -> bytes:
    member = regular_member(members, name)
    if member.size > bytes_max:
        raise Refused(Code.OVERSIZE, f"{name}: {member.size} bytes, at most {bytes_max}")
    file = archive.extractfile(member)
    assert file is not None, "only regular files come here, and they have content"
    data = file.read()
    if len(data) != member.size:
        raise Refused(Code.MALFORMED, f"{name}: truncated")
    return data
