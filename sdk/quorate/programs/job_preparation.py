"""Makes a job ready to be packed: its tag becomes a digest, its local code becomes inputs."""

import asyncio
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from quorate.base.errors import QuorateError, UsageError
from quorate.job.job import Job
from quorate.job.packing import NO_COMMAND, is_path
from quorate.programs.entrypoint import asks_image, with_archives_entrypoint, with_entrypoint
from quorate.rentals.homes import with_home
from quorate.rentals.ssh_files import SshFiles
from quorate_protocol.messages.job_spec import is_image_cid

if TYPE_CHECKING:
    from aiohttp import ClientSession as HttpSession

    from quorate.images.engine_images import EngineImages
    from quorate.images.image_python import ImagePython
    from quorate.programs.preparation import Preparer

STAGING = ".staging-"
LOCK = "lock"  # held while the client that staged lives
UNLOCKED_SECONDS = 60.0  # from making a folder to locking it, at most


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
        self._engine: EngineImages | None = None
        self._staging: Path | None = None

    async def prepared(self, job: Job) -> Job:
        """Returns the job with an archive or a digest for its image, and inputs instead of code.

        Raises UsageError if the image is neither in the local engine nor at its registry.
        """
        if job.is_rental:
            job = replace(job, access=(SshFiles(self._home).public_key(), *job.access))
        if job.home:
            job = with_home(job, self._home)
        _check_local(job)
        named = str(job.image)
        if job.build is not None or not is_path(job.image):
            job = await self._with_image(job)
        if not is_path(job.image):
            job = await self._with_registrys_command(job, named != job.image)
        job = await asyncio.to_thread(with_archives_entrypoint, job)
        return await self._ready().prepare(job) if job.has_local_code else job

    @contextmanager
    def names_in_errors(self) -> Iterator[None]:
        """Names an image in errors as the user did, not by the archive that was made of it."""
        try:
            yield
        except UsageError as error:
            said = str(error) if self._engine is None else self._engine.as_named(str(error))
            if said == str(error):
                raise
            raise UsageError(said) from error

    async def _with_registrys_command(self, job: Job, is_resolved: bool) -> Job:
        """Reads the ENTRYPOINT of an image whose tag the registry has just resolved.

        UsageError if neither the job nor the image has a command, also for a given digest.
        """
        from quorate.images.registry_config import image_words

        is_empty = not job.has_command
        if is_image_cid(str(job.image)) or not (is_empty or (is_resolved and asks_image(job))):
            return job
        try:
            entrypoint, command = await image_words(self._session, str(job.image))
        except QuorateError:
            if is_empty:
                return job  # not re-raised: most images have a command
            # Not re-raised: the digest is known, and most images have no ENTRYPOINT.
            self._notice("the image's ENTRYPOINT cannot be read; the command is run alone")
            return with_entrypoint(job)
        if is_empty and not entrypoint and not command:
            raise UsageError(NO_COMMAND)
        return with_entrypoint(job, entrypoint)

    async def _with_image(self, job: Job) -> Job:
        """Looks in the local engine first, then asks the registry what a tag means now."""
        from quorate.images.tag_resolution import resolve
        from quorate_content.images.image_names import parse_tagged

        if job.build is not None:
            archive = await self._engine_images().built(job.build)
            return replace(job, build=None, image=archive)
        found = await self._engine_images().found(str(job.image))
        if found is not None:
            return replace(job, image=found)
        tagged = parse_tagged(str(job.image))
        if tagged is None:
            return job
        job = replace(job, image=await resolve(self._session, tagged))
        self._notice(f"image {tagged.name}:{tagged.tag} is {job.image}")
        return job

    def _engine_images(self) -> "EngineImages":
        from quorate.images.engine_images import EngineImages

        if self._engine is None:
            self._engine = EngineImages(self._session, self._notice, self.folder)
        return self._engine

    def _ready(self) -> "Preparer":
        from quorate.programs.preparation import Preparer

        if self._preparer is None:
            self._preparer = Preparer(self.folder(), self._notice, self._python_of)
        return self._preparer

    def folder(self) -> Path:
        """Returns the folder for what is made for uploads."""
        if self._staging is None:
            _delete_stale(self._home)
            made = TemporaryDirectory(dir=self._home, prefix=STAGING)
            self._staging = Path(self._stack.enter_context(made))
            lock = self._stack.enter_context((self._staging / LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._staging

    async def _python_of(self, image: str) -> "ImagePython | None":
        """Returns the Python of a registry's image by its configuration; None for a CID."""
        from quorate.images.registry_config import image_python

        return await image_python(self._session, image)


def _check_local(job: Job) -> None:
    """Raises UsageError for local files that do not exist, before an image is saved or built."""
    given = job.requirements
    named = [("file", path) for path in job.files()]
    named += [
        (f"inputs.{mount}", Path(value)) for mount, value in job.inputs.items() if is_path(value)
    ]
    if isinstance(given, str | Path):
        named.append(("requirements", Path(given)))
    for field, path in named:
        if not path.expanduser().exists():
            raise UsageError(f"{field}: {path} does not exist")


def _delete_stale(home: Path) -> None:
    """Deletes the folders of clients that were killed: their locks are free."""
    for old in home.glob(f"{STAGING}*"):
        if not _is_in_use(old):
            shutil.rmtree(old, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:  # not re-raised: its client has not locked it yet, or is an old one
        return folder.exists() and time.time() - folder.stat().st_mtime < UNLOCKED_SECONDS
    except OSError:  # not re-raised: another client holds the lock
        return True
