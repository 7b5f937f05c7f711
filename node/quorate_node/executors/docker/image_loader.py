"""Getting an image into the engine: an archive of the content store, or a registry image pinned
by digest.

Both come as archives that were read strictly first (`registry_image` says why the engine pulls
nothing). One load at a time for each image, so that none waits for another's. What was loaded is
recorded and goes again when room is needed.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import docker
import docker.errors

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo, ImageLimits, refuse_shell_command
from quorate_content.images.sanitized_archive import sanitized_archive
from quorate_content.threads import StopSignal
from quorate_node.executors.docker.hardened_profile import ImageFacts
from quorate_node.executors.docker.image_cache import KEPT_BYTES_MAX, KeptImages
from quorate_node.executors.keyed_locks import KeyedLocks
from quorate_node.executors.outputs import delete_tree
from quorate_node.images.archive_cache import ArchiveInfos
from quorate_node.images.registry_http import Pace, RegistryHttp
from quorate_node.images.registry_image import PinnedImage, fetch_archive, parse_pinned
from quorate_protocol.refusals import Code, Refused, Unavailable

PULLS_FOLDER = "pulls"
Inspected = dict[str, object]


@dataclass(frozen=True, slots=True)
class ImageRules:
    """What the owner gives images. `private`: registry images that may come from the owner's own
    network; None = all (a devnet).
    """

    bytes_max: int = 16 << 30  # one registry image, as it is sent
    kept_bytes_max: int = KEPT_BYTES_MAX
    private: frozenset[str] | None = frozenset()
    pace: Pace = field(default_factory=Pace)


class Images:
    """Loads each image once. Blocking: called from worker threads. `kept` None: nothing that is
    loaded ever goes again.
    """

    def __init__(self, api: docker.APIClient, kept: KeptImages | None = None) -> None:
        self._api, self._kept = api, kept
        self._loading = KeyedLocks()
        self._infos = ArchiveInfos()

    def ensure(self, image: Path | str, argv: tuple[str, ...]) -> ImageFacts:
        """The image, present in the engine; a registry's must have been fetched. Refused(UNKNOWN
        | MALFORMED | UNSUPPORTED).
        """
        if isinstance(image, str):
            return self._fetched(parse_pinned(image))
        info = self._infos.of(image)
        refuse_shell_command(info, argv)
        reference = self.load(image, info)
        return ImageFacts(
            reference, info.env, info.entrypoint, info.command, info.has_env, info.volumes
        )

    def has(self, name: str) -> bool:
        """Whether a registry's image is in the engine: brought by us, or by the owner under that
        name.
        """
        return self._find(parse_pinned(name)) is not None

    def load(self, path: Path, info: ImageInfo) -> str:
        """The id of the archive's image in the engine, loaded unless it is there."""
        reference = f"sha256:{info.config_digest}"
        with self._loading.held(reference):
            if self._inspect(reference) is None:
                self._bring(path, info, reference)
            elif self._kept is not None:
                self._kept.use(reference)
        return reference

    def _bring(self, path: Path, info: ImageInfo, reference: str) -> None:
        if self._kept is not None:
            self._kept.make_room(info.unpacked_bytes, reference, self._remove)
            self._kept.record(reference, info.unpacked_bytes)
        self._send(path, info)
        found = self._inspect(reference)
        if found is None:
            raise Refused(
                Code.MALFORMED, f"image: the engine did not accept the archive as {reference}"
            )
        size = found.get("Size")
        if self._kept is not None and isinstance(size, int):
            self._settle(reference, max(size, info.unpacked_bytes))

    def _settle(self, reference: str, size: int) -> None:
        """Counts what the engine says: whatever was believed before, it is the owner's disk."""
        assert self._kept is not None
        try:
            self._kept.make_room(size, reference, self._remove)
        except (Refused, Unavailable):
            if self._remove(reference):
                self._kept.forget(reference)
            raise
        self._kept.record(reference, size)

    def _send(self, path: Path, info: ImageInfo) -> None:
        try:
            for event in self._api.load_image(sanitized_archive(path, info)):  # type: ignore[no-untyped-call]
                if "error" in event:
                    raise Refused(
                        Code.MALFORMED, f"image: the engine refuses the archive: {event['error']}"
                    )
        except docker.errors.APIError as error:
            raise Refused(
                Code.MALFORMED, f"image: the engine refuses the archive: {error.explanation}"
            ) from error

    def _remove(self, reference: str) -> bool:
        """Takes one of ours out of the engine, unless it is in use or somebody gave it a name."""
        found = self._inspect(reference)
        if found is None:
            return True
        if found.get("RepoTags") or found.get("RepoDigests"):
            return False
        try:
            self._api.remove_image(reference)
        except docker.errors.ImageNotFound:
            return True  # another was faster
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            return False  # a container or another image needs it
        return True

    def _fetched(self, image: PinnedImage) -> ImageFacts:
        found = self._find(image)
        if found is None:
            raise Unavailable(f"image {image.name} is not in the engine any more", 1.0)
        reference, inspected = found
        config = inspected.get("Config")
        fields = config if isinstance(config, dict) else {}
        env, entrypoint, command, volumes = (
            tuple(fields.get(field) or ()) for field in ("Env", "Entrypoint", "Cmd", "Volumes")
        )
        return ImageFacts(reference, env, entrypoint, command, None, volumes)

    def _find(self, image: PinnedImage) -> tuple[str, Inspected] | None:
        """(what the engine calls it, its record). One that the owner has under that name comes
        second.
        """
        ours = self._kept.find(image.digest) if self._kept else None
        for name in (ours, image.name):
            found = self._inspect(name) if name else None
            if name and found is not None:
                if self._kept is not None and name == ours:
                    self._kept.use(name)
                return name, found
        return None

    def _inspect(self, reference: str) -> Inspected | None:
        try:
            found: Inspected = self._api.inspect_image(reference)  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None  # the answer to the question
        return found


class Fetcher:
    """Brings registries' images into the engine. Blocking, one image at a time for each thread."""

    def __init__(self, images: Images, kept: KeptImages, folder: Path, rules: ImageRules) -> None:
        self._images, self._kept, self._folder, self._rules = (
            images,
            kept,
            folder / PULLS_FOLDER,
            rules,
        )
        self._guard = threading.Lock()
        self._active: list[str] = []

    def fetch(self, name: str, stop: StopSignal) -> None:
        """Fetches, reads and loads one image. Refused and Unavailable as `fetch_archive`,
        `read_archive` and `Images.load`.
        """
        image = parse_pinned(name)
        work = image.digest.removeprefix("sha256:")
        with self._guard:
            others = frozenset(self._active)
            self._active.append(work)
        try:
            is_vouched = self._rules.private is None or name in self._rules.private
            registry = RegistryHttp(image.host, image.path, is_vouched, stop, self._rules.pace)
            archive = fetch_archive(image, registry, self._folder, self._rules.bytes_max, others)
            self._load(image, archive, stop)
        finally:
            with self._guard:
                self._active.remove(work)

    def _load(self, image: PinnedImage, archive: Path, stop: StopSignal) -> None:
        limit = ImageLimits().unpacked_bytes
        try:
            info = read_archive(
                archive, ImageLimits(unpacked_bytes=min(limit, self._kept.bytes_max))
            )
            stop.check()
            self._kept.name(self._images.load(archive, info), image.digest)
        finally:
            delete_tree(archive.parent)
