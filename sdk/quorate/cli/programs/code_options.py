"""Options of `quorate run` for local code, and the check of local code without any network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.context import note, run_async

if TYPE_CHECKING:
    from quorate.job.job import Job
    from quorate.job.packing import PackedJob
    from quorate.programs.image_python import ImagePython

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


def pack_without_network(job: "Job") -> "tuple[PackedJob, bool]":
    """Returns the packed job, and whether its spec is what an order would have.

    Requirements are not resolved, because that needs a package index.
    """
    from quorate.job.packing import pack
    from quorate.programs.preparation import Preparer

    async def any_python(_image: str) -> "ImagePython":
        from quorate.programs.image_python import ImagePython

        return ImagePython(job.python or "3.12")

    with TemporaryDirectory(prefix="quorate-") as folder:
        preparer = Preparer(Path(folder), note, any_python)
        prepared = run_async(preparer.prepare(replace(job, requirements=())))
        if job.requirements:
            note("requirements: submitting resolves them; only then the spec has a CID")
        return pack(prepared, {}), not job.requirements
