"""Makes Docker archives by hand: ordinary ones with one more layer, and hostile ones."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Member = tuple[tarfile.TarInfo, bytes]


def entry(
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    mode: int = 0o644,
) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(content)
    return info, content


def tar(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def image_entries(
    layers: Sequence[bytes], config: Mapping[str, object] | None = None, **changes: object
) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Returns the members of a valid archive. `changes` replace top-level fields of its
    configuration.
    """
    document: dict[str, object] = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config or {}),
        "history": [{"created": "1970-01-01T00:00:00Z"}] * len(layers),
        "rootfs": {
            "type": "layers",
            "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers],
        },
        **changes,
    }
    body = json.dumps(document).encode()
    name = hashlib.sha256(body).hexdigest() + ".json"
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    manifest = json.dumps([{"Config": name, "Layers": names, "RepoTags": ["python:3.12"]}]).encode()
    return [
        entry(name, body),
        *(entry(*pair) for pair in zip(names, layers, strict=True)),
        entry("manifest.json", manifest),
    ]


def add_layer(base: Path, target: Path, files: Mapping[str, Path], env: Sequence[str]) -> None:
    """Writes an archive like `base` with one more layer and more environment variables."""
    with tarfile.open(base) as archive:
        manifest = json.loads(_read(archive, "manifest.json"))[0]
        config = json.loads(_read(archive, manifest["Config"]))["config"]
        layers = [_read(archive, name) for name in manifest["Layers"]]
    config["Env"] += env
    layers.append(tar([entry(name, path.read_bytes(), mode=0o755) for name, path in files.items()]))
    target.write_bytes(tar(image_entries(layers, config)))


def declare_volumes(base: Path, target: Path, volumes: Sequence[str]) -> None:
    """Writes an archive like `base` that declares volumes, with a file in /data, and a link
    /linked to /var/x.
    """
    folder = entry("data", kind=tarfile.DIRTYPE, mode=0o1777)
    layer = tar(
        [
            folder,
            entry("data/given", b"given"),
            entry("linked", kind=tarfile.SYMTYPE, link="/var/x"),
        ]
    )
    append_layer(base, target, layer, volumes)


def append_layer(base: Path, target: Path, layer: bytes, volumes: Sequence[str]) -> None:
    """Writes an archive like `base` with one more layer that declares these volumes."""
    with tarfile.open(base) as archive:
        manifest = json.loads(_read(archive, "manifest.json"))[0]
        config = json.loads(_read(archive, manifest["Config"]))["config"]
        layers = [_read(archive, name) for name in manifest["Layers"]]
    target.write_bytes(
        tar(image_entries([*layers, layer], {**config, "Volumes": {path: {} for path in volumes}}))
    )


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def reconfigured(base: Path, target: Path, changes: Mapping[str, object]) -> None:
    """Writes an archive like `base` with another configuration."""
    with tarfile.open(base) as archive:
        manifest = json.loads(_read(archive, "manifest.json"))[0]
        config = json.loads(_read(archive, manifest["Config"]))["config"]
        layers = [_read(archive, name) for name in manifest["Layers"]]
    target.write_bytes(tar(image_entries(layers, {**config, **changes})))
