"""Getting an image into the engine: an archive of the content store, or a registry image pinned by digest."""

import re
import threading
from pathlib import Path

import docker
import docker.errors

from quorate_content.image_archive import (
    ImageInfo,
    loadable,
    refuse_shell_command,
)
from quorate_node.adapters.archives import ArchiveInfos
from quorate_node.adapters.docker_profile import ImageFacts
from quorate_protocol.refusals import Code, Refused, Unavailable

_PINNED = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,200}@sha256:[0-9a-f]{64}")


class Images:
    """Loads each image once. Blocking: called from worker threads."""

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._infos = ArchiveInfos()

    def ensure(self, image: Path | str, argv: tuple[str, ...]) -> ImageFacts:
        """The image, present in the engine. Refused(UNKNOWN | MALFORMED | UNSUPPORTED), Unavailable when a registry is."""
        with self._lock:
            return self._archive(image, argv) if isinstance(image, Path) else self._registry(image)

    def _archive(self, path: Path, argv: tuple[str, ...]) -> ImageFacts:
        info = self._infos.of(path)
        refuse_shell_command(info, argv)
        reference = f"sha256:{info.config_digest}"
        if self._inspect(reference) is None:
            self._load(path, info)
            if self._inspect(reference) is None:
                raise Refused(Code.MALFORMED, f"image: the engine did not accept the archive as {reference}")
        return ImageFacts(reference, info.env, info.entrypoint, info.command, info.has_env, info.volumes)

    def _load(self, path: Path, info: ImageInfo) -> None:
        try:
            for event in self._api.load_image(loadable(path, info)):  # type: ignore[no-untyped-call]
                if "error" in event:
                    raise Refused(Code.MALFORMED, f"image: the engine refuses the archive: {event['error']}")
        except docker.errors.APIError as error:
            raise Refused(Code.MALFORMED, f"image: the engine refuses the archive: {error.explanation}") from error

    def _registry(self, name: str) -> ImageFacts:
        if not _PINNED.fullmatch(name):
            raise Refused(Code.MALFORMED, "image: a registry image is named name@sha256:digest; tags move")
        found = self._inspect(name)
        if found is None:
            self._pull(name)
            found = self._inspect(name)
        if found is None:
            raise Refused(Code.UNKNOWN, f"image: {name} was pulled, but the engine does not know it")
        config = found.get("Config") or {}
        env, entrypoint, command, volumes = (tuple(config.get(field) or ()) for field in ("Env", "Entrypoint", "Cmd", "Volumes"))
        return ImageFacts(name, env, entrypoint, command, None, volumes)

    def _pull(self, name: str) -> None:
        try:
            for event in self._api.pull(name, stream=True, decode=True):
                if "error" in event:
                    raise _pull_error(name, str(event["error"]))
        except docker.errors.NotFound as error:
            raise Refused(Code.UNKNOWN, f"image: the registry does not have {name}") from error
        except docker.errors.APIError as error:
            raise _pull_error(name, str(error.explanation)) from error

    def _inspect(self, reference: str) -> dict[str, dict[str, list[str] | None]] | None:
        try:
            found: dict[str, dict[str, list[str] | None]] = self._api.inspect_image(reference)  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None  # the answer to the question
        return found


def _pull_error(name: str, text: str) -> Refused | Unavailable:
    """What the engine's sentence means, whether it came as an answer or in the middle of the stream."""
    if any(words in text for words in ("verification failed", "unexpected commit digest", "layer verification")):
        return Refused(Code.MALFORMED, f"image: the registry sends something else as {name}: {text[:300]}")
    if any(words in text for words in ("denied", "not found", "manifest unknown", "name unknown")):
        return Refused(Code.UNKNOWN, f"image: the registry does not give {name}: {text[:300]}")
    return Unavailable(f"the registry of {name} cannot be reached: {text[:300]}", 10.0)
