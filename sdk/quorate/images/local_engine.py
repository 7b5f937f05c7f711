"""Takes images from the container engine of this machine, through its own command line.

The command line knows contexts, DOCKER_HOST and rootless engines, so the client needs no package.
Calls block; make them in a thread.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from quorate.base.errors import UnavailableError, UsageError
from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo, ImageLimits
from quorate_content.images.layers import Layer, opened_layers
from quorate_content.images.tar_checks import member_bytes, open_archive, read_members
from quorate_protocol.refusals import Code, Refused

# Writes any `docker save` archive again so that its bytes follow from the image alone.
#
# Engines write times, tags and their own order into an archive, and some compress layers. Here
# the same configuration and layers always give the same bytes, so the same CID.

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


PROGRAMS = ("docker", "podman")
ASK_SECONDS, SAVE_SECONDS, BUILD_SECONDS = 15.0, 1800.0, 7200.0
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,250}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image of the local engine. `repo_digests` name it at registries: `name@sha256:...`."""

    id: str
    repo_digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """The engine's command line program."""

    program: str

    def find(self, name: str) -> EngineImage | None:
        """Returns the image of this name or id; None if there is none or no engine answers."""
        if not _NAME.fullmatch(name):
            return None
        form = '{"id":{{json .Id}},"digests":{{json .RepoDigests}}}'
        done = self._ask("image", "inspect", "--format", form, name)
        if done is None or done.returncode:
            return None
        try:
            tree = json.loads(done.stdout)
            digests = tuple(str(item) for item in tree["digests"] or ())
            return EngineImage(str(tree["id"]), digests)
        except (ValueError, KeyError, TypeError):
            return None  # not re-raised: what answers is no such engine

    def export(self, image: EngineImage, target: Path) -> None:
        """Writes the image as an archive whose bytes follow from its contents alone.

        UnavailableError if the engine cannot give it, UsageError if it cannot be run elsewhere.
        """
        if not _IMAGE_ID.fullmatch(image.id):
            raise UnavailableError(f"image: {self.program} names the image {image.id[:80]!r}")
        with TemporaryDirectory(dir=target.parent, prefix=".save-") as folder:
            saved = Path(folder) / "saved.tar"
            words = [self.program, "save", "-o", str(saved), image.id]
            done = _run(words, SAVE_SECONDS, subprocess.PIPE)
            if done.returncode:
                raise UnavailableError(f"image: {self.program} save fails: {_last_line(done)}")
            try:
                write_canonical_archive(saved, target)
            except Refused as refused:
                raise UsageError(f"image: {image.id[:19]}: {refused.detail}") from refused

    def build(self, place: Path) -> EngineImage:
        """Builds a Dockerfile: `place` itself, or the one in the folder `place`.

        What the engine prints goes to standard error. UsageError if there is none or it fails.
        """
        place = place.expanduser()
        dockerfile = place / "Dockerfile" if place.is_dir() else place
        if not dockerfile.is_file():
            raise UsageError(f"build: {dockerfile} does not exist")
        with TemporaryDirectory(prefix="quorate-") as folder:
            names = Path(folder) / "id"
            words = [self.program, "build", "--iidfile", str(names), "-f", str(dockerfile)]
            done = _run([*self._builder(), *words, str(dockerfile.parent)], BUILD_SECONDS, None)
            if done.returncode or not names.is_file():
                raise UsageError(
                    f"build: {self.program} build of {dockerfile} ends with {done.returncode}; "
                    "its last lines say why"
                )
            return EngineImage(names.read_text().strip(), ())

    def _builder(self) -> list[str]:
        """Returns what chooses docker's older builder where the newer one is not installed."""
        if Path(self.program).name != "docker":
            return []
        done = self._ask("buildx", "version")
        return ["env", "DOCKER_BUILDKIT=0"] if done is None or done.returncode else []

    def _ask(self, *words: str) -> "subprocess.CompletedProcess[bytes] | None":
        try:
            return _run([self.program, *words], ASK_SECONDS, subprocess.PIPE)
        except UnavailableError:
            return None  # not re-raised: an engine that hangs has no image for us


def local_engine() -> LocalEngine | None:
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    return None if found is None else LocalEngine(found)


def needed_engine() -> LocalEngine:
    """Returns the engine's program. UsageError if none is installed."""
    engine = local_engine()
    if engine is None:
        raise UsageError(
            "build: there is no docker and no podman on PATH; install one, or use quorate image "
            "build --python -o image.tar"
        )
    return engine


def _run(
    words: Sequence[str], seconds: float, errors: int | None
) -> "subprocess.CompletedProcess[bytes]":
    output = subprocess.PIPE if errors is not None else 2  # the caller's standard error
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{words[0]} {words[1]} took more than {seconds:g} s") from error


def _last_line(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"it ends with {done.returncode}"
