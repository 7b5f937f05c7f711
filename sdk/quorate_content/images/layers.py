"""Checks every entry of an image's layers, and opens layers for unpacking without an engine."""

import gzip
import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quorate_content.images.image_info import ImageInfo, ImageLimits
from quorate_content.images.layer_headers import LayerEntry, read_layer_headers
from quorate_content.images.tar_checks import (
    BoundedReader,
    checked_name,
    clean_name,
    open_archive,
    read_members,
    regular_member,
)
from quorate_protocol.refusals import Code, Refused

# Every sandbox mounts something at these, and not all of them follow a link there.
MOUNT_POINTS = frozenset({"dev", "inputs", "outputs", "proc", "scratch", "sys", "tmp"})


SHELL_PATHS = frozenset({"bin/sh", "usr/bin/sh"})


ENV_PATHS = frozenset({"usr/bin/env"})


DISK_BLOCK_BYTES = 4096


_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@contextmanager
def opened_layers(
    path: Path, info: ImageInfo, limits: ImageLimits | None = None
) -> Iterator[list["Layer"]]:
    """Yields the layers of a checked archive, lowest first, for executors that unpack without an
    engine. Errors are those of `read_archive`.
    """
    limits = limits or ImageLimits()
    with open_archive(path, limits) as archive:
        members = read_members(archive, limits, "archive")
        pairs = zip(info.layers, info.diff_ids, strict=True)
        yield [
            Layer(archive, regular_member(members, name), diff_id, limits)
            for name, diff_id in pairs
        ]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an open archive. `diff_id` is the expected hash of its uncompressed bytes; only
    an engine checks it.
    """

    archive: tarfile.TarFile
    member: tarfile.TarInfo
    diff_id: str
    limits: ImageLimits

    def plain(self) -> IO[bytes]:
        """Returns a seekable reader of the uncompressed bytes, with a bound on their number."""
        return uncompressed_layer(self.archive, self.member, self.limits)

    def entries(self) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        """Yields each entry in order with the tar file that reads its content. Names and links are
        checked again.
        """
        with tarfile.open(fileobj=self.plain(), mode="r:") as layer:
            for entry in layer:
                read = LayerEntry(entry.name, entry.type, entry.linkname, entry.size)
                _check_entry(read, self.member.name, self.limits)
                yield layer, entry
                # Otherwise the tar module keeps every header in memory.
                layer.members = []  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class WatchedPaths:
    """Watched paths that currently hold something other than a folder. `folders` are watched
    because mounts need folders there.
    """

    paths: set[str]
    folders: frozenset[str]


@dataclass(frozen=True, slots=True)
class LayerSize:
    """What a layer takes: its entries, its plain bytes, and at least the bytes that it writes."""

    entries: int
    plain_bytes: int
    written_bytes: int


def scan_layer(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    seen: WatchedPaths,
    limits: ImageLimits,
    budget: int,
) -> LayerSize:
    """Checks every header, name and link of one layer and updates `seen`.

    Raises Refused(OVERSIZE) if the layer would write more than `limits.unpacked_bytes`. Each entry
    counts one block of the disk beside its data, because folders and links need one too.
    """
    entries = written = 0
    source = uncompressed_layer(archive, member, limits)
    for entry in read_layer_headers(source, member.name):
        entries += 1
        if entries > budget:
            raise Refused(Code.OVERSIZE, f"the image has more than {limits.members} files")
        _check_entry(entry, member.name, limits)
        _record_path(entry, seen)
        written += entry.size + -entry.size % DISK_BLOCK_BYTES + DISK_BLOCK_BYTES
        if written > limits.unpacked_bytes:
            raise Refused(
                Code.OVERSIZE,
                f"image: {member.name}: its first {entries} entries would write {written} bytes, "
                f"and {limits.unpacked_bytes} are allowed",
            )
    return LayerSize(entries, source.tell(), written)


def uncompressed_layer(
    archive: tarfile.TarFile, member: tarfile.TarInfo, limits: ImageLimits
) -> IO[bytes]:
    """Returns a bounded reader of a layer's uncompressed bytes; gzip is undone, zstd refused."""
    source = archive.extractfile(member)
    assert source is not None, "`regular_member` returns only regular files"
    magic = source.read(4)
    source.seek(0)
    if magic == _ZSTD_MAGIC:
        raise Refused(
            Code.UNSUPPORTED,
            (
                f"{member.name}: zstd layers are not supported; save the image uncompressed or "
                f"with "
                f"gzip"
            ),
        )
    plain: IO[bytes] = gzip.GzipFile(fileobj=source) if magic[:2] == _GZIP_MAGIC else source  # type: ignore[assignment]
    too_large = Refused(
        Code.OVERSIZE, f"{member.name}: unpacks to more than {limits.unpacked_bytes} bytes"
    )
    return BoundedReader(plain, limits.unpacked_bytes, too_large)  # type: ignore[return-value]


def _check_entry(entry: LayerEntry, where: str, limits: ImageLimits) -> None:
    name = checked_name(entry.name.lstrip("/") or ".", where, limits)
    if entry.kind == tarfile.LNKTYPE:
        checked_name(entry.link.lstrip("/") or ".", f"{where}: link {name[:100]}", limits)
    elif entry.kind == tarfile.SYMTYPE and not entry.link.startswith("/"):
        joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.link))
        if joined.startswith("../") or joined == "..":
            raise Refused(Code.MALFORMED, f"{where}: link {name[:100]!r} leads out of the layer")
    elif entry.kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        raise Refused(
            Code.MALFORMED,
            f"{where}: {name[:100]!r} is a device file, which images may not contain",
        )


def _record_path(entry: LayerEntry, known: WatchedPaths) -> None:
    """Records shells, `env` and non-folders where something will be mounted. A higher layer's
    whiteout removes the record.
    """
    seen = known.paths
    name = clean_name(entry.name.lstrip("/") or ".")
    folder, base = posixpath.split(name)
    if base == ".wh..wh..opq":
        seen.difference_update([path for path in seen if path.startswith(f"{folder}/")])
    elif base.startswith(".wh."):
        gone = posixpath.join(folder, base[4:])
        seen.difference_update(
            [path for path in seen if path == gone or path.startswith(f"{gone}/")]
        )
    elif not entry.is_folder and (name in SHELL_PATHS | ENV_PATHS or name in known.folders):
        seen.add(name)
    elif entry.is_folder:
        seen.discard(name)
