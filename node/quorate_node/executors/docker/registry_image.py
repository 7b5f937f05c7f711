"""Fetches a registry's image `name@sha256:digest` as an archive, and checks every byte of it.

`read_archive` then checks the file. The digest names the manifest, which names every blob with its
digest and size. So this module knows all sizes before it requests the first blob. It keeps complete
blobs for a later attempt. Source: https://github.com/opencontainers/image-spec (manifest.md,
image-index.md).
"""

import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quorate_content.images.image_names import MANIFEST_TYPES, PinnedImage
from quorate_content.images.registry_http import RegistryHttp
from quorate_node.core import cuda_versions
from quorate_node.core.terms import GpuDriver
from quorate_node.executors.base.outputs import delete_tree
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused, Unavailable

MANIFEST_BYTES_MAX = 4 << 20
CONFIG_BYTES_MAX = 1 << 20
LAYERS_MAX = 127
SPARE_BYTES = 512 << 20
UNFINISHED_MAX = 4  # how many failed fetches keep their complete blobs for another attempt
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class _Blob:
    digest: str
    size: int


def fetch_archive(
    image: PinnedImage,
    registry: RegistryHttp,
    folder: Path,
    bytes_max: int,
    others: frozenset[str],
    check_env: Callable[[Mapping[str, str]], None] = lambda env: None,
) -> Path:
    """Returns a docker archive in a folder that the caller deletes. `others` are folders in use;
    `check_env` may refuse the image before its layers are fetched. Raises Refused(OVERSIZE) before
    any blob, Refused(MALFORMED) for other bytes, Unavailable if registry or disk fails.
    """
    manifest = _manifest(image, registry)
    blobs = _blobs(image, manifest)
    total = sum(blob.size for blob in blobs)
    if total > bytes_max:
        raise Refused(
            Code.OVERSIZE, f"image: {image.name} has {total} bytes, a slot has room for {bytes_max}"
        )
    work = folder / image.digest.removeprefix("sha256:")
    _prune(folder, others | {work.name})
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    free = shutil.disk_usage(work).free
    if free < total + max(blob.size for blob in blobs) + SPARE_BYTES:
        raise Unavailable(
            f"no room to fetch an image of {total} bytes: {free} bytes are free in {folder}; "
            "free some disk",
            60.0,
        )
    config, *layers = blobs
    _fetch_blob(image, registry, config, work)
    check_env(_environment(image, work / config.digest.removeprefix("sha256:")))
    for blob in layers:
        _fetch_blob(image, registry, blob, work)
    return _compose(blobs, work)


def _manifest(image: PinnedImage, registry: RegistryHttp) -> dict[str, object]:
    """The digest may name an index of several."""
    tree = _document(image, registry, image.digest)
    if "manifests" not in tree:
        return tree
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    for item in _objects(tree["manifests"]):
        kind = item.get("platform")
        if (
            isinstance(kind, dict)
            and kind.get("os") == "linux"
            and kind.get("architecture") == architecture
        ):
            return _document(image, registry, _digest(image, item.get("digest")))
    raise Refused(
        Code.UNSUPPORTED, f"image: {image.name} has no variant for linux on {architecture}"
    )


def _document(image: PinnedImage, registry: RegistryHttp, digest: str) -> dict[str, object]:
    with registry.get(f"manifests/{digest}", MANIFEST_TYPES) as response:
        body = b"".join(registry.chunks(response, MANIFEST_BYTES_MAX))
    if "sha256:" + hashlib.sha256(body).hexdigest() != digest:
        raise _other(image, f"manifest {digest}")
    try:
        tree = canonical.loads(body)
    except ValueError as error:
        raise Refused(
            Code.MALFORMED, f"image: the manifest of {image.name} is not JSON: {error}"
        ) from error
    if not isinstance(tree, dict):
        raise Refused(Code.MALFORMED, f"image: the manifest of {image.name} is not a JSON object")
    return dict(tree)


def _blobs(image: PinnedImage, manifest: dict[str, object]) -> list[_Blob]:
    layers = _objects(manifest.get("layers"))
    if not 1 <= len(layers) <= LAYERS_MAX:
        raise Refused(
            Code.UNSUPPORTED,
            f"image: {image.name} has {len(layers)} layers in a known format; 1 to "
            f"{LAYERS_MAX} are allowed",
        )
    if any("zstd" in str(layer.get("mediaType")) for layer in layers):
        raise Refused(
            Code.UNSUPPORTED,
            f"image: {image.name} has zstd layers, which are not supported; push it with gzip",
        )
    config, *rest = (_blob(image, item) for item in (*_objects([manifest.get("config")]), *layers))
    if config.size > CONFIG_BYTES_MAX:
        raise Refused(
            Code.OVERSIZE,
            f"image: the config of {image.name} has {config.size} bytes, at most "
            f"{CONFIG_BYTES_MAX}",
        )
    return [config, *rest]


def _blob(image: PinnedImage, item: dict[str, object]) -> _Blob:
    size = item.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refused(Code.MALFORMED, f"image: the manifest of {image.name} gives no valid sizes")
    return _Blob(_digest(image, item.get("digest")), size)


def _digest(image: PinnedImage, value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise Refused(
            Code.MALFORMED,
            f"image: the manifest of {image.name} names a blob without a sha256 digest",
        )
    return value


def _objects(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Refused(Code.MALFORMED, "image: the manifest has an unknown format")
    return value


def _fetch_blob(image: PinnedImage, registry: RegistryHttp, blob: _Blob, work: Path) -> None:
    target = work / blob.digest.removeprefix("sha256:")
    if target.exists():
        return  # a layer may occur twice, or an earlier attempt fetched it
    part, digest = target.with_suffix(".part"), hashlib.sha256()
    with part.open("wb") as file, registry.get(f"blobs/{blob.digest}") as response:
        for chunk in registry.chunks(response, blob.size):
            digest.update(chunk)
            _write(file, chunk)
    if part.stat().st_size < blob.size:
        raise Unavailable(f"the registry {image.host} stopped in the middle of {blob.digest}", 2.0)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise _other(image, blob.digest)
    os.replace(part, target)


def _environment(image: PinnedImage, path: Path) -> dict[str, str]:
    """`read_archive` checks the rest of the configuration later."""
    try:
        tree = canonical.loads(path.read_bytes())
    except ValueError as error:
        raise Refused(
            Code.MALFORMED, f"image: the configuration of {image.name} is not JSON: {error}"
        ) from error
    config = tree.get("config") if isinstance(tree, dict) else None
    env = config.get("Env") if isinstance(config, dict) else None
    words = [item for item in env if isinstance(item, str)] if isinstance(env, list) else []
    return image_env(words)


def _write(file: BinaryIO, chunk: bytes) -> None:
    try:
        file.write(chunk)
    except OSError as error:  # otherwise it would look like the registry's fault
        raise Unavailable(
            f"an image cannot be written: {error.strerror}; free some disk", 60.0
        ) from error


def _compose(blobs: Sequence[_Blob], work: Path) -> Path:
    """Deletes each blob once packed, so that at most one is on the disk twice."""
    names = [blob.digest.removeprefix("sha256:") for blob in blobs]
    body = json.dumps(
        [
            {
                "Config": f"{names[0]}.json",
                "Layers": [f"{name}.tar" for name in names[1:]],
                "RepoTags": None,
            }
        ]
    ).encode()
    part = work / "image.part"
    with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, suffix in {names[0]: ".json", **dict.fromkeys(names[1:], ".tar")}.items():
            archive.add(work / name, name + suffix, recursive=False)
            (work / name).unlink()
        (work / "manifest.json").write_bytes(body)
        archive.add(work / "manifest.json", "manifest.json", recursive=False)
    return part.rename(work / "image.tar")


def _prune(folder: Path, in_use: frozenset[str]) -> None:
    """Deletes the folders of older attempts, except the newest few."""
    found = (
        [path for path in folder.iterdir() if path.name not in in_use] if folder.is_dir() else []
    )
    for path in sorted(found, key=_time, reverse=True)[UNFINISHED_MAX:]:
        delete_tree(path)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another fetch has just ended


def _other(image: PinnedImage, what: str) -> Refused:
    return Refused(
        Code.MALFORMED,
        f"image: the registry {image.host} sends wrong bytes for {what} of {image.name}",
    )


IMAGES_MAX = 1024


def image_env(words: Iterable[str]) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in words if "=" in item[1:])


class CudaRequirements:
    """Requirements of the registry images read last, so that a job with a too new image is declined
    early. The loop reads and the fetches' threads write.
    """

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._known: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> str:
        with self._lock:
            return self._known.get(name, "")

    def note(self, name: str, env: Mapping[str, str], needs_gpu: bool) -> None:
        """With `needs_gpu`, refuses the image as `check` does."""
        requirement = cuda_versions.requirement_of(env)
        with self._lock:
            self._known[name] = requirement
            self._known.move_to_end(name)
            while len(self._known) > IMAGES_MAX:
                self._known.popitem(last=False)
        if needs_gpu:
            self.check(env)

    def check(self, env: Mapping[str, str]) -> None:
        """Raises Refused(UNSUPPORTED) with both versions if the driver is too old for the image."""
        problem = cuda_versions.problem(cuda_versions.requirement_of(env), self._driver)
        if problem:
            raise Refused(Code.UNSUPPORTED, problem)
