"""`quorate image`: builds an image, or tries one twice on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.check import image_check
from quorate.cli.context import JsonFlag, emit
from quorate.cli.image_build import build_image
from quorate.job.quantities import format_size
from quorate_content.dag.disk_tree import cid_of_path

image_app = typer.Typer(
    help="Build images without a registry, and check programs in them.",
    no_args_is_help=True,
    add_completion=False,
)
image_app.command("check")(image_check)


@image_app.command("build")
def image_build(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Path of the docker archive to write (.tar).")
    ],
    python: Annotated[
        bool, typer.Option("--python", help="Include this interpreter with its standard library.")
    ] = False,
    packages: Annotated[
        list[str] | None, typer.Option("--with", help="Installed package to include. Repeatable.")
    ] = None,
    dockerfile: Annotated[
        Path | None,
        typer.Option(help="Dockerfile, or its folder, that the local engine builds instead."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Makes a deterministic image from this Python, or one from a Dockerfile.

    The image of this Python has no shell, so give its commands as lists of words.
    """
    image_id = build_image(output, python, packages or (), dockerfile)
    size, cid = output.stat().st_size, str(cid_of_path(output))
    if json:
        emit({"path": str(output), "cid": cid, "imageId": f"sha256:{image_id}", "bytes": size})
    else:
        typer.echo(f"{output}  {format_size(size)}\ncid      {cid}")
