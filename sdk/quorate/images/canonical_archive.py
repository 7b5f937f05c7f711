"""Writes any `docker save` archive again so that its bytes follow from the image alone.

Engines write times, tags and their own order into an archive, and some compress layers. Here the
same configuration and layers always give the same bytes, so the same CID.
"""

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo, ImageLimits
from quorate_content.images.layers import Layer, opened_layers
from quorate_content.images.tar_checks import member_bytes, open_archive, read_members
from quorate_protocol.refusals import Code, Refused

COPY_BYTES = 1 << 20


def write_canonical_archive(source: Path, target: Path) -> ImageInfo:
    """Reads, checks and writes the archive; `target` appears when it is complete.

    Raises Refused(MALFORMED) for a layer that is not what the configuration names, and the errors
    of `read_archive`.
    """
    info, limits = read_archive(source), ImageLimits()
    with open_archive(source, limits) as archive:
        members = read_members(archive, limits, "archive")
        config = member_bytes(archive, members, info.config_name, limits.config_bytes)
    with TemporaryDirectory(dir=target.parent, prefix=".image-") as folder:
        written = Path(folder) / "image.tar"
        with tarfile.open(written, "w", format=tarfile.PAX_FORMAT) as archive:
            _add_bytes(archive, f"{info.config_digest}.json", config)
            names = [f"{index}/layer.tar" for index in range(len(info.layers))]
            with opened_layers(source, info) as layers:
                for name, layer in zip(names, layers, strict=True):
                    _add_layer(archive, name, layer, Path(folder) / "layer.tar")
            manifest = [{"Config": f"{info.config_digest}.json", "Layers": names, "RepoTags": None}]
            body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
            _add_bytes(archive, "manifest.json", body)
        written.replace(target)
    return info


def _add_layer(archive: tarfile.TarFile, name: str, layer: Layer, plain: Path) -> None:
    """Adds one layer uncompressed. Its size is known only after it was unpacked once."""
    with plain.open("wb") as copy:
        shutil.copyfileobj(layer.plain(), copy, COPY_BYTES)
    with plain.open("rb") as file:
        found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found != layer.diff_id:
            raise Refused(Code.MALFORMED, f"{name} is {found}, but the image names {layer.diff_id}")
        file.seek(0)
        _add(archive, name, plain.stat().st_size, file)


def _add_bytes(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    _add(archive, name, len(body), io.BytesIO(body))


def _add(archive: tarfile.TarFile, name: str, size: int, file: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    archive.addfile(info, file)
