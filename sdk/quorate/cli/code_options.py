"""Options of `quorate run` for local code, and the check of local code without any network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from quorate.cli.context import note, run_async
from quorate.images.image_python import ImagePython
from quorate.images.tag_resolution import parse_tagged
from quorate.job.job import Job
from quorate.job.packing import PackedJob, is_path, pack
from quorate.job.sweep import element_job, elements
from quorate.programs.entrypoint import with_archives_entrypoint
from quorate.programs.preparation import Preparer

_NO_DIGEST = "sha256:" + "0" * 64
CODE_PANEL = "Your own code"
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        help="Python program to run with the image's python3; the words after -- are its "
        "arguments. Repeat it for files and folders that lie beside it.",
        rich_help_panel=CODE_PANEL,
    ),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        "-r",
        help="Requirements file; its wheels are chosen here and sent along.",
        rich_help_panel=CODE_PANEL,
    ),
]
Workdir = Annotated[
    Path | None,
    typer.Option(
        help="Folder to send along and to start in; .quorateignore or .gitignore name what stays.",
        rich_help_panel=CODE_PANEL,
    ),
]
PythonVersion = Annotated[
    str,
    typer.Option(
        "--python",
        help='The image\'s Python, such as "3.12", if the image does not say it.',
        rich_help_panel=CODE_PANEL,
    ),
]
Build = Annotated[
    Path | None,
    typer.Option(
        help="Dockerfile, or its folder, that the local engine builds; it replaces IMAGE.",
        rich_help_panel=CODE_PANEL,
    ),
]


def code_fields(
    file: Sequence[str] | None,
    requirements: Path | None,
    workdir: Path | None,
    python: str,
    words: Sequence[str],
) -> dict[str, Any]:
    """Returns the fields of `Job` for local code, with the words of the command line in place."""
    field = "args" if file else "command"
    return {
        "file": tuple(file or ()),
        "requirements": requirements or (),
        "workdir": workdir,
        "python": python,
        field: tuple(words),
    }


def pack_without_network(job: Job) -> tuple[PackedJob, bool]:
    """Returns the packed job, and whether its spec is what an order would have.

    No registry, engine or package index is asked, so that tags, builds and requirements stay open.
    """

    async def any_python(_image: str) -> ImagePython:
        return ImagePython(job.python or "3.12")

    tagged = None if is_path(job.image) else parse_tagged(str(job.image))
    if job.build is not None:
        note("build: submitting builds the image; only then the spec has a CID")
    elif tagged is not None:
        note(
            f"image: {tagged.name}:{tagged.tag} is a tag; submitting resolves it to a digest, "
            "and only then the spec has a CID"
        )
    if job.requirements:
        note("requirements: submitting resolves them; only then the spec has a CID")
    is_open = job.build is not None or tagged is not None or bool(job.requirements)
    if job.build is not None or tagged is not None:
        job = replace(job, build=None, image=f"{tagged.name if tagged else 'built'}@{_NO_DIGEST}")
    job = with_archives_entrypoint(job)
    with TemporaryDirectory(prefix="quorate-") as folder:
        preparer = Preparer(Path(folder), note, any_python)
        prepared = run_async(preparer.prepare(replace(job, requirements=(), sweep={}, seeds=0)))
        if job.is_array:
            found = elements(job.sweep, job.seeds)
            note(f"sweep: {len(found)} runs; this is the spec of the first one")
            prepared = element_job(prepared, found[0], len(found))
        return pack(prepared, {}), not is_open
