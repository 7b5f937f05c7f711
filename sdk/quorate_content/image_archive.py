"""Strict reader of `docker save` archives made by strangers: what the image is, before an engine
sees one byte of it.

The archive is named by its CID, so its bytes are known; this says that they mean what an engine
may be shown. `loadable` streams the archive to an engine with only what the manifest names and
no tags: an archive must not be able to rename other images. The engine itself checks each layer
against the diff ids of the config, and the config against its digest.
"""

import gzip
import hashlib
import io
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from quorate_protocol.refusals import Code, Refused

LABEL_PYTHON = "quorate.python"
LABEL_SHELL = "quorate.shell"
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_SHELL_PATHS = frozenset({"bin/sh", "usr/bin/sh"})
_ENV_PATHS = frozenset({"usr/bin/env"})
_READ_MAX = 4 << 20
_JSON_DEPTH_MAX = 32
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_COPY_BYTES = 1 << 20
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds of one archive; an ordinary machine-learning image stays far below."""

    archive_bytes: int = 64 << 30
    unpacked_bytes: int = 256 << 30  # of all layers together
    # and at most so many times the archive, beyond what is free: nobody is to unpack zeros for
    # hours
    expansion: int = 50
    expansion_free_bytes: int = 1 << 30
    config_bytes: int = 1 << 20
    layers: int = 127
    members: int = 2_000_000
    path_bytes: int = 4096
    env: int = 512
    words: int = 1024  # of entry point and command
    words_bytes: int = (
        128 << 10
    ) - 1  # of these and the environment; no kernel takes a single one that is longer
    volumes: int = 64


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image says of itself. `config_digest` is hex and is the id that an engine gives
    it. `has_env`: it has /usr/bin/env.
    """

    config_digest: str
    architecture: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    working_dir: str
    labels: tuple[tuple[str, str], ...]
    diff_ids: tuple[str, ...]
    layers: tuple[str, ...]  # member names in the archive, lowest first
    config_name: str
    has_shell: bool
    has_env: bool
    volumes: tuple[str, ...] = ()  # as declared: any text
    unpacked_bytes: int = 0  # of all layers

    def label(self, name: str) -> str | None:
        """A label's value."""
        return dict(self.labels).get(name)


def read_archive(path: Path, limits: ImageLimits | None = None) -> ImageInfo:
    """Reads and checks the whole archive.

    Refused(MALFORMED | OVERSIZE | UNSUPPORTED) says where it is wrong, Refused(UNKNOWN) that it
    is not there.
    """
    limits = limits or ImageLimits()
    with _open(path, limits) as archive:
        members = _members(archive, limits, "archive")
        manifest = _manifest(archive, members, limits)
        config_name, layers = _named(manifest, limits)
        config_bytes = _content(archive, members, config_name, limits.config_bytes)
        config = _object(_json(config_bytes, config_name), config_name)
        diff_ids = _texts(
            _object(config.get("rootfs"), "rootfs").get("diff_ids"), "rootfs.diff_ids"
        )
        if len(diff_ids) != len(layers):
            raise Refused(
                Code.MALFORMED, f"{len(layers)} layers, but {len(diff_ids)} diff ids in the config"
            )
        volumes = _volumes(config, limits)
        seen = _Seen(set(), frozenset(path for volume in volumes for path in _ways(volume)))
        budget, room = (
            limits.members,
            min(
                limits.unpacked_bytes,
                limits.expansion_free_bytes + limits.expansion * path.stat().st_size,
            ),
        )
        unpacked_bytes = 0
        for name in layers:
            entries, unpacked = _scan_layer(
                archive, _target(members, name), seen, replace(limits, unpacked_bytes=room), budget
            )
            budget, room, unpacked_bytes = (
                budget - entries,
                room - unpacked,
                unpacked_bytes + unpacked,
            )
    for name in sorted(seen.paths & seen.folders):
        # Engines follow a link there, gVisor does not: the same job would have two results.
        raise Refused(
            Code.UNSUPPORTED,
            (
                f"image: Volumes: one lies at or below /{name[:200]}, which is no folder; name the "
                f"folder itself"
            ),
        )
    info = _info(
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


def refuse_shell_command(info: ImageInfo, argv: tuple[str, ...]) -> None:
    """Refused(UNSUPPORTED) when the command starts a shell that the image does not have."""
    if argv and posixpath.basename(argv[0]) in SHELLS and not info.has_shell:
        raise Refused(
            Code.UNSUPPORTED,
            f"command: the image has no shell, so {argv[0]} cannot run a command line in it; "
            "give the command as a list of words (argv), or use an image that has /bin/sh",
        )


def loadable(path: Path, info: ImageInfo) -> Iterator[bytes]:
    """The archive as an engine may load it: config, layers, and a manifest without tags, under
    our own names.
    """
    with tarfile.open(path, "r:") as archive:
        members = {_clean(member.name): member for member in archive.getmembers()}
        names = [f"{index}/layer.tar" for index in range(len(info.layers))]
        manifest = [{"Config": f"{info.config_digest}.json", "Layers": names, "RepoTags": None}]
        yield from _emit(f"{info.config_digest}.json", archive, _target(members, info.config_name))
        for name, layer in zip(names, info.layers, strict=True):
            yield from _emit(name, archive, _target(members, layer))
        body = json.dumps(manifest).encode()
        yield (
            _header("manifest.json", len(body))
            + body
            + _padding(len(body))
            + bytes(2 * tarfile.BLOCKSIZE)
        )


@contextmanager
def opened_layers(
    path: Path, info: ImageInfo, limits: ImageLimits | None = None
) -> Iterator[list["Layer"]]:
    """The layers of a read archive, lowest first, for whoever unpacks them without an engine.
    Errors as in `read_archive`.
    """
    limits = limits or ImageLimits()
    with _open(path, limits) as archive:
        members = _members(archive, limits, "archive")
        pairs = zip(info.layers, info.diff_ids, strict=True)
        yield [Layer(archive, _target(members, name), diff_id, limits) for name, diff_id in pairs]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an open archive. `diff_id` is what its uncompressed bytes must hash to;
    nothing but an engine checks that.
    """

    archive: tarfile.TarFile
    member: tarfile.TarInfo
    diff_id: str
    limits: ImageLimits

    def plain(self) -> IO[bytes]:
        """Its uncompressed bytes from the start, bounded, seekable."""
        return _plain_layer(self.archive, self.member, self.limits)

    def entries(self) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        """Its entries in order, each with the tar file that reads its content; names and links
        are checked again.
        """
        with tarfile.open(fileobj=self.plain(), mode="r:") as layer:
            for entry in layer:
                _check_entry(entry, self.member.name, self.limits)
                yield layer, entry
                # the module keeps every header otherwise
                layer.members = []  # type: ignore[attr-defined]


def _emit(name: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    yield _header(name, member.size)
    source = archive.extractfile(member)
    assert source is not None, "read_archive lets only regular files through"
    while chunk := source.read(_COPY_BYTES):
        yield chunk
    yield _padding(member.size)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


class _Bounded(io.RawIOBase):
    """A seekable reader that refuses single reads and positions beyond a bound.

    The tar module reads extended headers whole, and a compressed layer may expand without end.
    """

    def __init__(self, source: IO[bytes], position_max: int, beyond: Refused) -> None:
        self._source = source
        self._position_max = position_max
        self._beyond = beyond

    def read(self, size: int = -1, /) -> bytes:
        """At most 4 MiB at once."""
        if size < 0 or size > _READ_MAX:
            raise Refused(Code.OVERSIZE, "an extended tar header is larger than 4 MiB")
        return self._source.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Positions from the start only, as the tar module asks for them."""
        if whence != 0 or offset > self._position_max:
            raise self._beyond
        return self._source.seek(offset)

    def tell(self) -> int:
        """Position from the start."""
        return self._source.tell()

    def seekable(self) -> bool:
        """True."""
        return True

    def readable(self) -> bool:
        """True."""
        return True


@contextmanager
def _open(path: Path, limits: ImageLimits) -> Iterator[tarfile.TarFile]:
    try:
        size = path.stat().st_size
        if size > limits.archive_bytes:
            raise Refused(
                Code.OVERSIZE, f"archive has {size} bytes, at most {limits.archive_bytes}"
            )
        truncated = Refused(Code.MALFORMED, "image archive: truncated")
        with (
            path.open("rb") as file,
            tarfile.open(fileobj=_Bounded(file, size, truncated), mode="r:") as archive,
        ):
            yield archive
    except FileNotFoundError as error:
        raise Refused(Code.UNKNOWN, f"no image archive at {path.name}") from error
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
        raise Refused(Code.MALFORMED, f"image archive: {error}") from error


def _members(
    archive: tarfile.TarFile, limits: ImageLimits, where: str
) -> dict[str, tarfile.TarInfo]:
    """All members by clean name; duplicates would let two readers see two archives."""
    members: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(archive):
        if count >= limits.members:
            raise Refused(Code.OVERSIZE, f"{where}: more than {limits.members} entries")
        name = _checked(member.name, where, limits)
        if name in members and not member.isdir():
            raise Refused(Code.MALFORMED, f"{where}: {name!r} occurs twice")
        members[name] = member
    return members


def _checked(name: str, where: str, limits: ImageLimits) -> str:
    if len(name.encode("utf-8", "surrogateescape")) > limits.path_bytes:
        raise Refused(Code.MALFORMED, f"{where}: a path longer than {limits.path_bytes} bytes")
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise Refused(Code.MALFORMED, f"{where}: {name[:200]!r} leads out of the archive")
    return _clean(name)


def _clean(name: str) -> str:
    return posixpath.normpath(name)


def _target(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """The regular file behind a name. `docker save` writes repeated layers as a link to the
    first: one step, inside the archive.
    """
    member = members.get(_clean(name))
    if member is not None and (member.issym() or member.islnk()):
        base = posixpath.dirname(_clean(name)) if member.issym() else ""
        member = members.get(_clean(posixpath.join(base, member.linkname)))
    if member is None or not member.isreg() or member.issparse():
        raise Refused(Code.MALFORMED, f"{name[:200]!r} is not a file of the archive")
    return member


def _content(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, bytes_max: int
) -> bytes:
    member = _target(members, name)
    if member.size > bytes_max:
        raise Refused(Code.OVERSIZE, f"{name}: {member.size} bytes, at most {bytes_max}")
    file = archive.extractfile(member)
    assert file is not None, "regular files have content"
    data = file.read()
    if len(data) != member.size:
        raise Refused(Code.MALFORMED, f"{name}: truncated")
    return data


def _json(data: bytes, where: str) -> object:
    """The parser recurses in C, and a library may have raised the interpreter's recursion limit
    past the stack: depth is checked first.
    """
    depth = 0
    for bracket in re.findall(rb"[\[\]{}]", _JSON_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > _JSON_DEPTH_MAX:
            raise Refused(Code.MALFORMED, f"{where}: nested deeper than {_JSON_DEPTH_MAX}")
    try:
        return json.loads(data)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{where} is not JSON: {error}") from error


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refused(Code.MALFORMED, f"{where} is not a JSON object")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(item, str) and _is_text(item) for item in value
    ):
        raise Refused(Code.MALFORMED, f"{where} is not a list of texts")
    return tuple(value)


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False  # half of a character, which JSON can hold and no program can be given


def _manifest(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], limits: ImageLimits
) -> dict[str, object]:
    if "manifest.json" not in members:
        raise Refused(Code.MALFORMED, "no manifest.json: not a `docker save` archive")
    manifest = _json(
        _content(archive, members, "manifest.json", limits.config_bytes), "manifest.json"
    )
    if not isinstance(manifest, list) or len(manifest) != 1:
        raise Refused(Code.MALFORMED, "manifest.json must describe exactly one image")
    return _object(manifest[0], "manifest.json")


def _named(manifest: dict[str, object], limits: ImageLimits) -> tuple[str, tuple[str, ...]]:
    config = manifest.get("Config")
    layers = _texts(manifest.get("Layers"), "manifest.json Layers")
    if not isinstance(config, str):
        raise Refused(Code.MALFORMED, "manifest.json names no config")
    if not 1 <= len(layers) <= limits.layers:
        raise Refused(Code.OVERSIZE, f"{len(layers)} layers, 1 to {limits.layers} are allowed")
    for name in (config, *layers):
        _checked(name, "manifest.json", limits)
    return config, layers


@dataclass(frozen=True, slots=True)
class _Seen:
    """What stands, other than a folder, at the paths that we care about; `folders` are those
    where a folder should be.
    """

    paths: set[str]
    folders: frozenset[str]


def _scan_layer(
    archive: tarfile.TarFile, member: tarfile.TarInfo, seen: _Seen, limits: ImageLimits, budget: int
) -> tuple[int, int]:
    """Checks every name and link of one layer, keeps `seen` up to date; its entries and unpacked
    bytes.
    """
    entries = 0
    with tarfile.open(fileobj=_plain_layer(archive, member, limits), mode="r:") as layer:
        for entry in layer:
            entries += 1
            if entries > budget:
                raise Refused(Code.OVERSIZE, f"more than {limits.members} files")
            _check_entry(entry, member.name, limits)
            _notice(entry, seen)
            # the module keeps every header otherwise
            layer.members = []  # type: ignore[attr-defined]
        return entries, layer.offset


def _plain_layer(
    archive: tarfile.TarFile, member: tarfile.TarInfo, limits: ImageLimits
) -> IO[bytes]:
    source = archive.extractfile(member)
    assert source is not None, "_target lets only regular files through"
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
    return _Bounded(plain, limits.unpacked_bytes, too_large)  # type: ignore[return-value]


def _check_entry(entry: tarfile.TarInfo, where: str, limits: ImageLimits) -> None:
    name = _checked(entry.name.lstrip("/") or ".", where, limits)
    if entry.islnk():
        _checked(entry.linkname.lstrip("/") or ".", f"{where}: link {name[:100]}", limits)
    elif entry.issym() and not entry.linkname.startswith("/"):
        joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.linkname))
        if joined.startswith("../") or joined == "..":
            raise Refused(Code.MALFORMED, f"{where}: link {name[:100]!r} leads out of the layer")
    elif entry.ischr() or entry.isblk():
        raise Refused(Code.MALFORMED, f"{where}: {name[:100]!r} is a device")


def _notice(entry: tarfile.TarInfo, known: _Seen) -> None:
    """Remembers shell, env and links in the way of volumes, and forgets them at a whiteout of a
    higher layer.
    """
    seen = known.paths
    name = _clean(entry.name.lstrip("/") or ".")
    folder, base = posixpath.split(name)
    if base == ".wh..wh..opq":
        seen.difference_update([path for path in seen if path.startswith(f"{folder}/")])
    elif base.startswith(".wh."):
        gone = posixpath.join(folder, base[4:])
        seen.difference_update(
            [path for path in seen if path == gone or path.startswith(f"{gone}/")]
        )
    elif not entry.isdir() and (name in _SHELL_PATHS | _ENV_PATHS or name in known.folders):
        seen.add(name)
    elif entry.isdir():
        seen.discard(name)


def _volumes(config: dict[str, object], limits: ImageLimits) -> tuple[str, ...]:
    inner = _object(config.get("config") or {}, "config")
    volumes = _texts(sorted(_object(inner.get("Volumes") or {}, "Volumes")), "Volumes")
    if len(volumes) > limits.volumes or any(len(path) > limits.path_bytes for path in volumes):
        raise Refused(
            Code.OVERSIZE,
            (
                f"{len(volumes)} volumes in the image, at most {limits.volumes} with "
                f"{limits.path_bytes} characters"
            ),
        )
    return volumes


def _ways(path: str) -> Iterator[str]:
    """The path and every folder above it, as names of a layer."""
    name = _clean(path.lstrip("/") or ".")
    while name not in ("", ".", "..", "/"):
        yield name
        name = posixpath.dirname(name)


def _info(
    config: dict[str, object],
    digest: str,
    config_name: str,
    layers: tuple[str, ...],
    diff_ids: tuple[str, ...],
    seen: set[str],
    volumes: tuple[str, ...],
    limits: ImageLimits,
) -> ImageInfo:
    inner = _object(config.get("config") or {}, "config")
    labels = _object(inner.get("Labels") or {}, "Labels")
    env, *words = (_texts(inner.get(name), name) for name in ("Env", "Entrypoint", "Cmd"))
    if len(env) > limits.env:
        raise Refused(Code.OVERSIZE, f"{len(env)} variables in the image, at most {limits.env}")
    started = [item for list_ in (env, *words) for item in list_]
    if (
        len(started) > limits.env + limits.words
        or sum(len(item.encode()) for item in started) > limits.words_bytes
    ):
        most = f"at most {limits.words} words and, with its variables, {limits.words_bytes} bytes"
        raise Refused(Code.OVERSIZE, f"the image starts with more than a kernel may take: {most}")
    if config.get("os") != "linux":
        raise Refused(Code.UNSUPPORTED, "only Linux images run here")
    return ImageInfo(
        config_digest=digest,
        architecture=str(config.get("architecture", "")),
        env=env,
        entrypoint=words[0],
        command=words[1],
        user=str(inner.get("User") or ""),
        working_dir=str(inner.get("WorkingDir") or ""),
        labels=tuple(sorted((name, str(value)) for name, value in labels.items())),
        diff_ids=diff_ids,
        layers=layers,
        config_name=config_name,
        has_shell=bool(seen & _SHELL_PATHS),
        has_env=bool(seen & _ENV_PATHS),
        volumes=volumes,
    )
