"""Reads and checks a whole `docker save` archive from a stranger before any engine sees it.

The archive is named by its CID, so its bytes are known. This module checks what they mean. The
engine itself checks each layer against the config's diff ids, and the config against its digest.
"""

import hashlib
import json
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from quorate_content.images.image_config import (
    build_image_info,
    json_object,
    manifest_parts,
    parse_json,
    read_manifest,
    read_volumes,
    text_list,
)
from quorate_content.images.image_info import ImageInfo, ImageLimits
from quorate_content.images.layers import MOUNT_POINTS, WatchedPaths, scan_layer
from quorate_content.images.tar_checks import (
    clean_name,
    member_bytes,
    open_archive,
    read_members,
    regular_member,
)
from quorate_protocol.refusals import Code, Refused


def read_archive(path: Path, limits: ImageLimits | None = None) -> ImageInfo:
    """Reads and checks the whole archive at `path` and returns what it says about the image.

    Raises `Refused(MALFORMED | OVERSIZE | UNSUPPORTED)` that says what is wrong, or
    `Refused(UNKNOWN)` if there is no such file.
    """
    limits = limits or ImageLimits()
    with open_archive(path, limits) as archive:
        members = read_members(archive, limits, "archive")
        manifest = read_manifest(archive, members, limits)
        config_name, layers = manifest_parts(manifest, limits)
        config_bytes = member_bytes(archive, members, config_name, limits.config_bytes)
        config = json_object(parse_json(config_bytes, config_name), config_name)
        diff_ids = text_list(
            json_object(config.get("rootfs"), "rootfs").get("diff_ids"), "rootfs.diff_ids"
        )
        if len(diff_ids) != len(layers):
            raise Refused(
                Code.MALFORMED,
                f"the image has {len(layers)} layers, but its config lists {len(diff_ids)} "
                "diff ids",
            )
        volumes = read_volumes(config, limits)
        seen = WatchedPaths(
            set(),
            MOUNT_POINTS.union(path for volume in volumes for path in _path_and_parents(volume)),
        )
        budget = limits.members
        room = min(
            limits.unpacked_bytes,
            limits.expansion_free_bytes + limits.expansion * path.stat().st_size,
        )
        unpacked_bytes = 0
        for name in layers:
            size = scan_layer(
                archive,
                regular_member(members, name),
                seen,
                replace(limits, unpacked_bytes=room),
                budget,
            )
            unpacked = max(size.plain_bytes, size.written_bytes)
            budget -= size.entries
            room -= unpacked
            unpacked_bytes += unpacked
    for name in sorted(seen.paths & MOUNT_POINTS):
        raise Refused(
            Code.MALFORMED, f"image: /{name} must be a folder, because something is mounted there"
        )
    for name in sorted(seen.paths & seen.folders):
        # Engines follow a symbolic link there and gVisor does not, so one job could have two
        # results.
        raise Refused(
            Code.UNSUPPORTED,
            (
                f"image: a declared volume lies at or below /{name[:200]}, which is not a "
                "folder; name the folder itself"
            ),
        )
    info = build_image_info(
        config,
        hashlib.sha256(config_bytes).hexdigest(),
        config_name,
        layers,
        diff_ids,
        seen.paths,
        volumes,
        limits,
    )
    return replace(info, unpacked_bytes=unpacked_bytes)


def _path_and_parents(path: str) -> Iterator[str]:
    """Yields the path and each folder above it, written as names in a layer."""
    name = clean_name(path.lstrip("/") or ".")
    while name not in ("", ".", "..", "/"):
        yield name
        name = posixpath.dirname(name)


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
