"""Turns a job with local code into one with ordinary inputs, before it is packed.

    file, args      -> /inputs/code, command python3 /inputs/code/NAME ARGS
    workdir         -> /inputs/workdir, which is also the working folder
    requirements    -> /inputs/site-packages, on PYTHONPATH

The folders are made below `staging` and must exist until the upload is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quorate.base.errors import UnavailableError, UsageError
from quorate.images.image_python import ImagePython, file_names, python_of_archive
from quorate.job.job import Job
from quorate.job.packing import is_path
from quorate.programs.requirements import PackedRequirements, check_libraries, pack_requirements
from quorate.programs.staging import StagedFolder, stage_files, stage_folder
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused

CODE, WORK, PACKAGES = "/inputs/code", "/inputs/workdir", "/inputs/site-packages"
SHOWN_PINS = 12
# Without it a program could write compiled files into its input where nothing forbids it.
PYTHON_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
PythonOf = Callable[[str], Awaitable[ImagePython | None]]
"""Returns the Python of an image that is named by digest or CID, or None if that is unknown."""


@dataclass(slots=True)
class Preparer:
    """Prepares the jobs of one Market. `notice` is called with what will be sent.

    Requirements are resolved once for equal ones.
    """

    staging: Path
    notice: Callable[[str], None]
    python_of: PythonOf
    _made: int = 0
    _packages: dict[tuple[object, ImagePython], PackedRequirements] = field(default_factory=dict)

    async def prepare(self, job: Job) -> Job:
        """Returns the job without file, workdir and requirements.

        Raises UsageError for a missing file, an image without the right Python, or requirements
        that cannot be resolved.
        """
        if not job.has_local_code:
            return job
        changes = await asyncio.to_thread(self._stage_code, job)
        taken = sorted({*changes.inputs, *([PACKAGES] if job.requirements else [])} & {*job.inputs})
        if taken:
            raise UsageError(f"inputs: {taken[0]} is taken by the job's own code; choose another")
        python = await self._python(job) if job.file or job.requirements else None
        if job.requirements and python is not None:
            packages = await asyncio.to_thread(self._packed_requirements, job, python)
            changes.inputs[PACKAGES] = packages.path
            changes.env["PYTHONPATH"] = ":".join(
                [PACKAGES, *([job.env["PYTHONPATH"]] if "PYTHONPATH" in job.env else [])]
            )
        for sentence in changes.sent:
            self.notice(sentence)
        return replace(
            job,
            file=(),
            args=(),
            workdir=None,
            requirements=(),
            command=changes.command or job.command,
            working_dir=changes.working_dir or job.working_dir,
            inputs={**job.inputs, **changes.inputs},
            env={**job.env, **changes.env},
        )

    def _stage_code(self, job: Job) -> "_Changes":
        changes, files = _Changes(), job.files()
        work = None if job.workdir is None else Path(job.workdir).expanduser()
        if work is not None:
            mine = [path for path in (job.outputs, job.image) if isinstance(path, Path)]
            staged = stage_folder(work, self._new_folder("work"), "workdir", mine)
            changes.inputs[WORK], changes.working_dir = staged.path, WORK
            changes.sent.append(_described("workdir", str(work), staged))
        if files:
            program = self._stage_program(job, files, work, changes)
            changes.command = ("python3", program, *job.args)
            changes.env.update(
                {name: value for name, value in PYTHON_ENV.items() if name not in job.env}
            )
        return changes

    def _stage_program(
        self, job: Job, files: Sequence[Path], work: Path | None, changes: "_Changes"
    ) -> str:
        """Returns where the program lies in the container: in the working folder if it is there,
        else in a folder with the other files.
        """
        first = files[0]
        if not first.exists():
            raise UsageError(f"file: {first} does not exist")
        if first.is_dir() and not (first / "__main__.py").is_file():
            raise UsageError(f"file: {first} is a folder without __main__.py; name the program")
        if work is not None and first.resolve().is_relative_to(work.resolve()):
            if len(files) > 1:
                raise UsageError("file: with workdir give one program; the folder has the rest")
            inside = first.resolve().relative_to(work.resolve())
            if not (changes.inputs[WORK] / inside).exists():
                raise UsageError(f"file: {first} stays behind by the rules of .gitignore")
            return f"{WORK}/{inside}"
        staged = stage_files(files, self._new_folder("code"))
        changes.inputs[CODE] = staged.path
        changes.sent.append(_described("file", ", ".join(str(path) for path in files), staged))
        return f"{CODE}/{first.resolve().name}"

    async def _python(self, job: Job) -> ImagePython:
        """Returns the image's Python, or the one that the job names if the image does not say."""
        found = await self._find_python(job)
        if found is None and not job.python:
            raise UsageError(
                f"image: {job.image} does not say which Python it has; name it "
                '(python: "3.12", --python 3.12)'
            )
        if found is not None and job.python and found.version != job.python:
            raise UsageError(
                f"image: {job.image} has Python {found.version}, but the job names {job.python}; "
                "change one of them"
            )
        return found or ImagePython(job.python)

    async def _find_python(self, job: Job) -> ImagePython | None:
        if not is_path(job.image):
            try:
                return await self.python_of(str(job.image))
            except UnavailableError:
                if not job.python:
                    raise
                return None  # not re-raised: the job says which Python it is
        return await asyncio.to_thread(_python_here, job)

    def _packed_requirements(self, job: Job, python: ImagePython) -> PackedRequirements:
        given = job.requirements
        named = Path(given).expanduser() if isinstance(given, str | Path) else tuple(given)
        content: object = named
        if isinstance(named, Path) and named.is_file():
            content = named.read_bytes()
        key = (content, python)
        if key not in self._packages:
            folder = self._new_folder("site-packages")
            packed = pack_requirements(named, python, folder, self.notice)
            if is_path(job.image):
                path = Path(job.image).expanduser()
                check_libraries(packed.path, file_names(path), path.name)
            self._packages[key] = packed
            shown = ", ".join(packed.pins[:SHOWN_PINS])
            more = len(packed.pins) - SHOWN_PINS
            self.notice(
                f"requirements for Python {python.version}: {shown}"
                f"{f' and {more} more' if more > 0 else ''} ({size_text(packed.size_bytes)})"
            )
        return self._packages[key]

    def _new_folder(self, name: str) -> Path:
        """Returns a path that does not exist yet; its last part is what progress shows."""
        self._made += 1
        parent = self.staging / str(self._made)
        parent.mkdir(parents=True)
        return parent / name


def _python_here(job: Job) -> ImagePython:
    path = Path(job.image).expanduser()
    if not path.is_file():
        return ImagePython(job.python or "3.12")  # packing the job says that it is missing
    try:
        found = python_of_archive(path)
    except Refused as refused:
        raise UsageError(f"image: {path}: {refused.detail}") from refused
    if found is None:
        raise UsageError(
            f"image: {path} has no python3 on its PATH; use another image, or make one: quorate "
            "image build --python -o python.tar"
        )
    return found


@dataclass(slots=True)
class _Changes:
    """What local code changes in a job."""

    inputs: dict[str, Path] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    working_dir: str = ""
    sent: list[str] = field(default_factory=list)


def _described(what: str, source: str, staged: StagedFolder) -> str:
    left = f", {staged.left_out} left out by ignore rules" if staged.left_out else ""
    files = "1 file" if staged.files == 1 else f"{staged.files} files"
    return (
        f"{what} {source}: {files}, {size_text(staged.size_bytes)}{left}; the "
        "owners of the machines can read them"
    )
