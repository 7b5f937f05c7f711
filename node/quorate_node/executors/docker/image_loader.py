"""Brings images into the engine: archives of the content store, or registry images by digest.

Both come as archives that this module checks strictly first (`registry_http` says why the engine
pulls nothing). It loads each image at most once at a time, and no image waits for another. It
records loaded images, and removes them when it needs room.
"""

import json
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import docker
import docker.errors

from quorate_content.images.archive_reader import read_archive, sanitized_archive
from quorate_content.images.image_info import ImageInfo, ImageLimits, refuse_shell_command
from quorate_content.images.image_names import PinnedImage, parse_pinned, registry_host
from quorate_content.images.registry_http import RegistryHttp, TransferRate
from quorate_content.store.threads import StopSignal
from quorate_node.core.terms import GpuDriver
from quorate_node.executors.base.hardened_profile import ImageFacts
from quorate_node.executors.base.images import ArchiveInfoCache, KeyedLocks
from quorate_node.executors.base.outputs import delete_tree
from quorate_node.executors.docker.registry_image import CudaRequirements, fetch_archive
from quorate_protocol.messages.ports import RegistryLogin
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.files import write_atomic

KEPT_BYTES_MAX = 64 << 30
MANIFESTS_MAX = 64
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image: engine's id, bytes there, registries' digests, Unix seconds of last use."""

    image: str
    bytes: int
    manifests: tuple[str, ...]
    used: float


class ImageCache:
    """Which images this daemon brought into the engine. Blocking; safe between threads.

    Each has one small file below `folder`, written before the load, so that a crash leaves no image
    without a record; its time of change is the last use. An image that the engine had before is the
    owner's, and counts no bytes. One that somebody named in the engine stays.
    """

    def __init__(self, folder: Path, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._folder, self.bytes_max = folder, bytes_max
        self._lock = threading.Lock()

    def find(self, manifest: str) -> str | None:
        with self._lock:
            return next((kept.image for kept in self._all() if manifest in kept.manifests), None)

    def all(self) -> list[CachedImage]:
        with self._lock:
            return self._all()

    def record(self, image: str, size: int) -> None:
        with self._lock:
            known = self._read(self._path(image))
            self._write(CachedImage(image, size, known.manifests if known else (), time.time()))

    def name(self, image: str, manifest: str) -> None:
        """An image that this daemon did not load gets a record without bytes."""
        with self._lock:
            known = self._read(self._path(image)) or CachedImage(image, 0, (), 0.0)
            manifests = (*(item for item in known.manifests if item != manifest), manifest)[
                -MANIFESTS_MAX:
            ]
            self._write(CachedImage(image, known.bytes, manifests, time.time()))

    def use(self, image: str) -> None:
        with self._lock:
            if self._path(image).exists():
                os.utime(self._path(image))

    def make_room(self, size: int, image: str, remove: Callable[[str], bool]) -> None:
        """`remove` says whether the engine removed the image. Raises Refused(OVERSIZE) if it can
        never fit, Unavailable if all others are in use.
        """
        if size > self.bytes_max:
            raise Refused(
                Code.OVERSIZE,
                f"image: it has {size} bytes unpacked, all images together have room for "
                f"{self.bytes_max}",
            )
        with self._lock:
            others = [kept for kept in self._all() if kept.image != image]
            total = sum(kept.bytes for kept in others)
            for kept in others:
                if total + size <= self.bytes_max:
                    return
                if kept.bytes and remove(kept.image):
                    self._path(kept.image).unlink(missing_ok=True)
                    total -= kept.bytes
        if total + size > self.bytes_max:
            raise Unavailable(
                f"no room for an image of {size} bytes: the images in use have {total} of "
                f"{self.bytes_max}",
                30.0,
            )

    def forget(self, image: str) -> None:
        with self._lock:
            self._path(image).unlink(missing_ok=True)

    def _all(self) -> list[CachedImage]:
        paths = self._folder.glob(f"*{_SUFFIX}") if self._folder.is_dir() else iter(())
        return sorted(
            (kept for path in paths if (kept := self._read(path))), key=lambda kept: kept.used
        )

    def _path(self, image: str) -> Path:
        return self._folder / f"{image.removeprefix('sha256:')}{_SUFFIX}"

    def _read(self, path: Path) -> CachedImage | None:
        try:
            tree = json.loads(path.read_text())
            return CachedImage(
                f"sha256:{path.stem}",
                int(tree["bytes"]),
                tuple(tree["manifests"]),
                path.stat().st_mtime,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # There is no record, or a crash tore it. The daemon writes the record before it loads
            # the image, so it has loaded nothing.
            return None

    def _write(self, kept: CachedImage) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = json.dumps({"bytes": kept.bytes, "manifests": kept.manifests})
        write_atomic(self._path(kept.image), record.encode())


# Names the images that this provider's jobs brought into the engine: quorate-job:OWNER-DIGEST.
#
# So `docker images quorate-job` shows them. The engine counts names, so an image that several
# providers use goes when the last of them gives it up. A label inside the image would change its
# id, by which jobs are verified.

REPOSITORY = "quorate-job"
OWNER_CHARACTERS, DIGEST_CHARACTERS = 40, 24
_OTHER_LETTERS = re.compile(r"[^A-Za-z0-9_.]+")


class ImageNames:
    """The names that one owner's daemon gives. Blocking; raises as the Docker SDK does."""

    def __init__(self, api: docker.APIClient, owner: str) -> None:
        self._api = api
        self._start = f"{REPOSITORY}:{_OTHER_LETTERS.sub('_', owner)[:OWNER_CHARACTERS]}-"

    def put(self, reference: str) -> None:
        digest = reference.removeprefix("sha256:")[:DIGEST_CHARACTERS]
        name, tag = f"{self._start}{digest}".split(":")
        self._api.tag(reference, name, tag)

    def all(self) -> dict[str, str]:
        """Returns all images with this owner's name: name -> id."""
        found = self._api.images(name=REPOSITORY)
        return {
            name: str(item["Id"])
            for item in found
            for name in item.get("RepoTags") or ()
            if name.startswith(self._start)
        }

    def own(self, names: object) -> list[str]:
        return [name for name in _texts(names) if name.startswith(self._start)]


def foreign_names(names: object) -> list[str]:
    """Names that no provider gave: somebody else uses the image."""
    return [name for name in _texts(names) if not is_label(name)]


def is_label(name: str) -> bool:
    return name.startswith((f"{REPOSITORY}:", f"{REPOSITORY}@"))


def _texts(names: object) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []


PULLS_FOLDER = "pulls"
UNUSED_SECONDS_MAX = 14 * 86_400.0  # an image that no job used for longer is removed
Inspected = dict[str, object]


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """What the owner allows. `private`: images of the owner's network; None: all (devnet)."""

    bytes_max: int = 16 << 30  # of one registry image, compressed as it is sent
    kept_bytes_max: int = KEPT_BYTES_MAX
    private: frozenset[str] | None = frozenset()
    rate: TransferRate = field(default_factory=TransferRate)
    driver: GpuDriver = GpuDriver()  # decides which images are too new for jobs with GPUs


class ImageLoader:
    """Loads each image once; blocking. Without `cache` it removes and names none."""

    def __init__(
        self, api: docker.APIClient, cache: ImageCache | None = None, owner: str = ""
    ) -> None:
        self._api, self._cache = api, cache
        self._labels = ImageNames(api, owner)
        self._loading = KeyedLocks()
        self._infos = ArchiveInfoCache()

    def ensure(self, image: Path | str, argv: tuple[str, ...]) -> ImageFacts:
        """A registry's image must be there. Raises Refused(UNKNOWN | MALFORMED | UNSUPPORTED)."""
        if isinstance(image, str):
            return self._fetched(parse_pinned(image))
        info = self._infos.of(image)
        refuse_shell_command(info, argv)
        reference = self.load(image, info)
        return ImageFacts(
            reference, info.env, info.entrypoint, info.command, info.has_env, info.volumes
        )

    def has(self, name: str) -> bool:
        """Returns whether a registry's image is in the engine, brought by us or by the owner under
        that name.
        """
        return self._find(parse_pinned(name)) is not None

    def load(self, path: Path, info: ImageInfo) -> str:
        reference = f"sha256:{info.config_digest}"
        with self._loading.held(reference):
            found = self._inspect(reference)
            if found is None:
                self._load_new(path, info, reference)
            elif self._cache is not None:
                self._share(reference, found)
                self._cache.use(reference)
        return reference

    def _share(self, reference: str, found: Inspected) -> None:
        """Names an image that another provider's jobs brought, so that it stays for ours too."""
        tags, size = found.get("RepoTags"), found.get("Size")
        assert self._cache is not None, "the caller has a cache"
        if tags and not foreign_names(tags) and not self._labels.own(tags):
            self._cache.record(reference, size if isinstance(size, int) else 0)
            self._labels.put(reference)

    def tidy(self) -> None:
        """Removes what no record names, and what is long unused."""
        if self._cache is None:
            return
        recorded = {kept.image for kept in self._cache.all()}
        for name, image in self._labels.all().items():
            if image not in recorded:
                self._try_to_remove(name)
        self._remove_old()

    def _remove_old(self) -> None:
        assert self._cache is not None, "the caller has a cache"
        limit = time.time() - UNUSED_SECONDS_MAX
        for kept in self._cache.all():
            if kept.bytes and kept.used < limit and self._remove(kept.image):
                self._cache.forget(kept.image)

    def _load_new(self, path: Path, info: ImageInfo, reference: str) -> None:
        if self._cache is not None:
            self._remove_old()
            self._cache.make_room(info.unpacked_bytes, reference, self._remove)
            self._cache.record(reference, info.unpacked_bytes)
        self._send(path, info)
        found = self._inspect(reference)
        if found is None:
            raise Refused(
                Code.MALFORMED, f"image: the engine did not accept the archive as {reference}"
            )
        size = found.get("Size")
        if self._cache is not None:
            self._labels.put(reference)
        if self._cache is not None and isinstance(size, int):
            self._record_size(reference, max(size, info.unpacked_bytes))

    def _record_size(self, reference: str, size: int) -> None:
        """What the engine reports is what the disk holds."""
        assert self._cache is not None
        try:
            self._cache.make_room(size, reference, self._remove)
        except (Refused, Unavailable):
            if self._remove(reference):
                self._cache.forget(reference)
            raise
        self._cache.record(reference, size)

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
        """Unless it is in use or somebody else named it. Returns whether it is gone, or stays only
        for other providers.
        """
        found = self._inspect(reference)
        if found is None:
            return True
        names = (found.get("RepoTags"), found.get("RepoDigests"))
        if any(foreign_names(item) for item in names):
            return False
        own = self._labels.own(found.get("RepoTags"))
        if not own and found.get("RepoTags"):
            return True
        return all(self._try_to_remove(name) for name in own or [reference])

    def _try_to_remove(self, name: str) -> bool:
        """Removes a name, and with the last name the image. Returns whether the name is gone."""
        try:
            self._api.remove_image(name)
        except docker.errors.ImageNotFound:
            return True  # another thread removed it first
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
        """Prefers an image that this daemon loaded to one of the owner."""
        ours = self._cache.find(image.digest) if self._cache else None
        for name in (ours, image.name):
            found = self._inspect(name) if name else None
            if name and found is not None:
                if self._cache is not None and name == ours:
                    self._cache.use(name)
                return name, found
        return None

    def _inspect(self, reference: str) -> Inspected | None:
        try:
            found: Inspected = self._api.inspect_image(reference)  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None  # the engine has no such image
        return found


def basic_of(image: PinnedImage, login: RegistryLogin | None) -> str:
    """The Authorization header of a login for the image's own registry; else ""."""
    if login is None or registry_host(login.host) != image.host:
        return ""
    return "Basic " + b64encode(f"{login.user}:{login.password}".encode()).decode()


class RegistryImageFetcher:
    """Brings registries' images into the engine. Blocking; one image at a time in each thread."""

    def __init__(
        self,
        images: ImageLoader,
        cache: ImageCache,
        folder: Path,
        policy: ImagePolicy,
        requirements: CudaRequirements,
    ) -> None:
        self._images, self._cache, self._requirements = images, cache, requirements
        self._folder, self._policy = folder / PULLS_FOLDER, policy
        self._active_lock = threading.Lock()
        self._active: list[str] = []

    def fetch(
        self, name: str, needs_gpu: bool, stop: StopSignal, login: RegistryLogin | None = None
    ) -> None:
        """Raises Refused, Unavailable as `fetch_archive`, `read_archive`, `load` do."""
        image = parse_pinned(name)
        work = image.digest.removeprefix("sha256:")
        with self._active_lock:
            others = frozenset(self._active)
            self._active.append(work)
        try:
            may_be_private = self._policy.private is None or name in self._policy.private
            registry = RegistryHttp(
                image.host,
                image.path,
                may_be_private,
                stop,
                self._policy.rate,
                basic_of(image, login),
            )
            archive = fetch_archive(
                image,
                registry,
                self._folder,
                self._policy.bytes_max,
                others,
                lambda env: self._requirements.note(name, env, needs_gpu),
            )
            self._load(image, archive, stop)
        finally:
            with self._active_lock:
                self._active.remove(work)

    def _load(self, image: PinnedImage, archive: Path, stop: StopSignal) -> None:
        limit = ImageLimits().unpacked_bytes
        try:
            info = read_archive(
                archive, ImageLimits(unpacked_bytes=min(limit, self._cache.bytes_max))
            )
            stop.check()
            self._cache.name(self._images.load(archive, info), image.digest)
        finally:
            delete_tree(archive.parent)
