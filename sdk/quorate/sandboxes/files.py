"""Files of a sandbox. What its machine says about them is not believed: a file has no more bytes
than was allowed, and is written here only at the place that the user named.
"""

import asyncio
import os
import posixpath
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError

if TYPE_CHECKING:
    from asyncssh import SFTPClient

ENTRIES_MAX = 10_000
PATH_MAX = 4_096
PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a sandbox. Its name is the machine's word."""

    name: str
    size: int
    is_folder: bool
    modified: int  # Unix seconds


async def upload(sftp: "SFTPClient", source: str | Path | bytes, remote: str) -> None:
    parent = posixpath.dirname(_checked(remote))
    if parent:
        await sftp.makedirs(parent, exist_ok=True)
    if not isinstance(source, bytes):
        local = await asyncio.to_thread(lambda: Path(source).resolve(strict=True))
        await sftp.put(local, remote, recurse=True)
        return
    async with sftp.open(remote, "wb", encoding=None) as file:
        await file.write(source)


async def read(sftp: "SFTPClient", remote: str, most: int) -> bytes:
    return b"".join([data async for data in _pieces(sftp, remote, most)])


async def download(sftp: "SFTPClient", remote: str, local: Path, most: int) -> None:
    """The file appears whole or not at all, and never through a link that lies at its place."""
    with NamedTemporaryFile(dir=local.parent, prefix=".quorate-", delete=False) as file:
        try:
            async for data in _pieces(sftp, remote, most):
                file.write(data)
            os.replace(file.name, local)
        except BaseException:
            os.unlink(file.name)
            raise


async def entries(sftp: "SFTPClient", remote: str) -> tuple[Entry, ...]:
    found: list[Entry] = []
    async for item in sftp.scandir(_checked(remote)):
        if len(found) > ENTRIES_MAX:
            raise UsageError(
                f"list: {remote} has more than {ENTRIES_MAX} entries; use a command such as find"
            )
        is_folder = stat.S_ISDIR(item.attrs.permissions or 0)
        size, modified = item.attrs.size or 0, item.attrs.mtime or 0
        found.append(Entry(str(item.filename), size, is_folder, modified))
    shown = [entry for entry in found if entry.name not in (".", "..")]
    return tuple(sorted(shown, key=lambda entry: entry.name))


async def _pieces(sftp: "SFTPClient", remote: str, most: int) -> AsyncIterator[bytes]:
    size = 0
    async with sftp.open(_checked(remote), "rb", encoding=None) as file:
        while True:
            data: bytes = await file.read(PIECE_BYTES, size)
            if not data:
                return
            size += len(data)
            if size > most:
                raise UsageError(
                    f"{remote}: it is larger than {most} bytes; allow more, or read a part of it "
                    "with a command"
                )
            yield data


def _checked(path: str) -> str:
    if not path or "\0" in path or len(path) > PATH_MAX:
        raise UsageError(f"path: {path[:64]!r}; write a path of 1 to {PATH_MAX} characters")
    return path
