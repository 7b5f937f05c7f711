"""Makes a job ready to be packed: its tag becomes a digest, its local code becomes inputs."""

import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from quorate.job.job import Job
from quorate.job.packing import is_path

if TYPE_CHECKING:
    from aiohttp import ClientSession as HttpSession

    from quorate.programs.image_python import ImagePython
    from quorate.programs.preparation import Preparer

STAGING = ".staging-"
STALE_SECONDS = 24 * 3600.0  # a folder that a killed client left behind


class JobPreparation:
    """Prepares the jobs of one Market. Its folder below `home` is deleted when `stack` closes."""

    def __init__(
        self,
        home: Path,
        session: "HttpSession",
        notice: Callable[[str], None],
        stack: AsyncExitStack,
    ) -> None:
        self._home, self._session, self._notice, self._stack = home, session, notice, stack
        self._preparer: Preparer | None = None

    async def prepared(self, job: Job) -> Job:
        """Returns the job with a digest instead of a tag, and inputs instead of local code."""
        from quorate.images.tag_resolution import parse_tagged, resolve

        tagged = (
            parse_tagged(job.image)
            if isinstance(job.image, str) and not is_path(job.image)
            else None
        )
        if tagged is not None:
            job = replace(job, image=await resolve(self._session, tagged))
            self._notice(f"image {tagged.name}:{tagged.tag} is {job.image}")
        return await self._ready().prepare(job) if job.has_local_code else job

    def _ready(self) -> "Preparer":
        from quorate.programs.preparation import Preparer

        if self._preparer is None:
            _delete_stale(self._home)
            folder = self._stack.enter_context(TemporaryDirectory(dir=self._home, prefix=STAGING))
            self._preparer = Preparer(Path(folder), self._notice, self._python_of)
        return self._preparer

    async def _python_of(self, image: str) -> "ImagePython | None":
        """Returns the Python of a registry's image by its configuration; None for a CID."""
        from quorate.images.registry_config import image_python

        return await image_python(self._session, image)


def _delete_stale(home: Path) -> None:
    for old in home.glob(f"{STAGING}*"):
        if time.time() - old.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
