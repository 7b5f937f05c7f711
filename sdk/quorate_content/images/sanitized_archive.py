"""Streams an image archive to an engine: checked members under our own names, without tags."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from quorate_content.images.image_info import ImageInfo
from quorate_content.images.tar_checks import clean_name, regular_member

_COPY_BYTES = 1 << 20


def sanitized_archive(path: Path, info: ImageInfo) -> Iterator[bytes]:
    """Yields a tar archive that an engine can load: config, layers, and a manifest without tags.

    Tags are left out because a stranger's archive must not rename other images.
    """
    with tarfile.open(path, "r:") as archive:
        members = {clean_name(member.name): member for member in archive.getmembers()}
        names = [f"{index}/layer.tar" for index in range(len(info.layers))]
        manifest = [{"Config": f"{info.config_digest}.json", "Layers": names, "RepoTags": None}]
        yield from _emit(
            f"{info.config_digest}.json", archive, regular_member(members, info.config_name)
        )
        for name, layer in zip(names, info.layers, strict=True):
            yield from _emit(name, archive, regular_member(members, layer))
        body = json.dumps(manifest).encode()
        yield (
            _header("manifest.json", len(body))
            + body
            + _padding(len(body))
            + bytes(2 * tarfile.BLOCKSIZE)
        )


def _emit(name: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    yield _header(name, member.size)
    source = archive.extractfile(member)
    assert source is not None, "`read_archive` accepts only regular files"
    while chunk := source.read(_COPY_BYTES):
        yield chunk
    yield _padding(member.size)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
