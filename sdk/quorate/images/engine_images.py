"""Finds a user's image in the local engine: as a registry's digest if providers can fetch it, else
as an archive that is uploaded.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import ClientSession as HttpSession

from quorate.base.errors import UnavailableError, UsageError
from quorate.images.local_engine import EngineImage, local_engine, needed_engine
from quorate.images.tag_resolution import has_manifest
from quorate_content.images.image_names import TaggedImage, parse_tagged
from quorate_protocol.codec import cids
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused


class EngineImages:
    """Images of the local engine. `folder` returns where archives may be written."""

    def __init__(
        self, session: HttpSession, notice: Callable[[str], None], folder: Callable[[], Path]
    ) -> None:
        self._session, self._notice, self._folder = session, notice, folder
        self._archives: dict[str, Path] = {}
        self._names: dict[Path, str] = {}

    async def found(self, name: str) -> str | Path | None:
        """Returns `name@sha256:digest` or an archive; None if the engine lacks the image."""
        if "@" in name or _is_cid(name):
            return None
        engine = await asyncio.to_thread(local_engine)
        image = None if engine is None else await asyncio.to_thread(engine.find, name)
        if image is None:
            return None
        public = await self._at_registry(image)
        if public:
            self._notice(f"image {name} is {public}, as in the local engine")
            return public
        return await self._archive(name, image)

    async def built(self, place: str | Path) -> Path:
        engine = await asyncio.to_thread(needed_engine)
        return await self._archive(str(place), await asyncio.to_thread(engine.build, Path(place)))

    def as_named(self, text: str) -> str:
        """Returns a text with the user's names of images instead of their archives' paths."""
        for path, name in self._names.items():
            text = text.replace(str(path), name)
        return text

    async def _at_registry(self, image: EngineImage) -> str:
        """Returns the name by which a public registry has exactly this image, or ""."""
        for known in image.repo_digests[:4]:
            name, _, digest = known.partition("@")
            tagged = parse_tagged(f"{name}:latest")
            if tagged is None:
                continue
            place = TaggedImage(tagged.name, tagged.host, tagged.path, digest)
            try:
                if await has_manifest(self._session, place):
                    return f"{tagged.name}@{digest}"
            except (UsageError, UnavailableError):
                continue  # not re-raised: nobody else can fetch it there, so it is uploaded
        return ""

    async def _archive(self, name: str, image: EngineImage) -> Path:
        if image.id not in self._archives:
            target = self._folder() / f"{image.id.removeprefix('sha256:')[:12]}.tar"
            engine = await asyncio.to_thread(needed_engine)
            await asyncio.to_thread(engine.export, image, target)
            size = size_text(await asyncio.to_thread(_size, target))
            self._notice(f"image {name} is {image.id} of the local engine ({size})")
            self._archives[image.id], self._names[target] = target, name
        return self._archives[image.id]


def _size(path: Path) -> int:
    return path.stat().st_size


def _is_cid(name: str) -> bool:
    try:
        cids.cid_parts(name)
    except Refused:
        return False  # not re-raised: then it may be a name
    return True
