"""Implements `quorate image build --python [--with numpy]`: packs this interpreter and installed
wheels into a docker archive.

It uses no Dockerfile, engine or registry. The same environment gives the same bytes: entries are
sorted, times zero, owners root, modes 0644 or 0755, JSON keys sorted. So image id (sha256 of the
config) and CID are known before an engine loads the image.

Left out: tests, tkinter, IDLE, ensurepip, site-packages of the base interpreter, compiled bytecode,
headers, certificates, and without `--shell` any shell.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.images.contents import Contents, python_contents
from quorate_content.images.image_info import LABEL_PYTHON, LABEL_SHELL

_EPOCH = "1970-01-01T00:00:00Z"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The archive that was written. `config_digest` (hex) is the engine's image id. `missing` lists
    libraries that only the host can provide, such as a GPU driver.
    """

    path: Path
    config_digest: str
    archive_bytes: int
    files: int
    packages: tuple[str, ...]  # name==version
    missing: tuple[str, ...]


def build_python_image(
    destination: Path, packages: Sequence[str] = ("numpy",), has_shell: bool = False
) -> BuiltImage:
    """Writes the archive to `destination` and replaces an old file only when complete.

    Raises Refused(UNKNOWN) for a package that is not installed, Refused(MALFORMED) for one whose
    files differ from its RECORD, and Refused(UNSUPPORTED) where there is no shell to take.
    """
    contents = python_contents(packages, has_shell)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".image-") as folder:
        layer = Path(folder) / "layer.tar"
        diff_id = _write_layer(layer, contents)
        config = _config(diff_id, contents)
        archive = Path(folder) / "image.tar"
        _write_archive(archive, config, layer, diff_id)
        size = archive.stat().st_size
        archive.replace(destination)
    digest = hashlib.sha256(config).hexdigest()
    return BuiltImage(
        destination, digest, size, len(contents.files), contents.packages, contents.missing
    )


def _config(diff_id: str, contents: Contents) -> bytes:
    """Returns the image's configuration as JSON bytes. Their sha256 is the image id."""
    machine = platform.machine()
    version, shell = platform.python_version(), contents.has_shell
    document = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "config": {
            "Cmd": ["python3"],
            "Env": [
                f"PATH=/usr/local/bin{':/usr/bin' * shell}",
                "LANG=C.UTF-8",
                "PYTHONDONTWRITEBYTECODE=1",
            ],
            "Labels": {
                LABEL_PYTHON: version,
                LABEL_SHELL: "/bin/sh" if shell else "none",
                "quorate.packages": ",".join(contents.packages),
            },
            "User": "65534:65534",
            "WorkingDir": "/scratch",
        },
        "created": _EPOCH,
        "history": [{"created": _EPOCH, "created_by": f"quorate image build --python ({version})"}],
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{diff_id}"], "type": "layers"},
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _write_layer(path: Path, contents: Contents) -> str:
    """Writes the one layer and returns its hex sha256 (the diff id). Sorting puts folders before
    their contents.
    """
    entries: dict[str, tuple[int, bytes | Path | str | None]] = {}
    for name, mode in contents.folders.items():
        entries[name] = (mode, None)
    for name, source in contents.files.items():
        entries[name] = (_file_mode(source), source)
    for name, target in contents.links.items():
        entries[name] = (0o777, target)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(entries):
            _add(archive, name, *entries[name])
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, mode: int, source: bytes | Path | str | None) -> None:
    info = tarfile.TarInfo(name)
    info.mode = mode
    match source:
        case None:
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        case str():
            info.type = tarfile.SYMTYPE
            info.linkname = source
            archive.addfile(info)
        case bytes():
            info.size = len(source)
            archive.addfile(info, io.BytesIO(source))
        case Path():
            info.size = source.stat().st_size
            with source.open("rb") as file:
                archive.addfile(info, file)


def _file_mode(source: bytes | Path) -> int:
    """Returns mode 0755 for files that are executable here, else 0644. The builder's umask must not
    change the image.
    """
    return 0o755 if isinstance(source, Path) and source.stat().st_mode & 0o100 else 0o644


def _write_archive(path: Path, config: bytes, layer: Path, diff_id: str) -> None:
    """Writes the form of `docker save`: config, layer and manifest. There is no tag; the id is the
    only name.
    """
    digest = hashlib.sha256(config).hexdigest()
    layer_name = f"{diff_id}/layer.tar"
    manifest = [{"Config": f"{digest}.json", "Layers": [layer_name], "RepoTags": None}]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, f"{digest}.json", 0o644, config)
        _add(archive, layer_name, 0o644, layer)
        _add(
            archive,
            "manifest.json",
            0o644,
            json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode(),
        )
