"""`quorate image`: builds an image, or tries one twice on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from quorate.base.errors import UsageError
from quorate.cli.check import image_check
from quorate.cli.context import JsonFlag, emit
from quorate.images import build_python_image, read_archive
from quorate.images.local_engine import needed_engine
from quorate_content.dag.disk_tree import cid_of_path
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused

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
    shell: Annotated[
        bool, typer.Option("--shell", help="Include this machine's shell and its usual programs.")
    ] = False,
    dockerfile: Annotated[
        Path | None,
        typer.Option(help="Dockerfile, or its folder, that the local engine builds instead."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Makes a deterministic image from this Python, or one from a Dockerfile.

    The image of this Python has no shell without --shell; then give its commands as lists of
    words. Machines that you rent and work in need one.
    """
    image_id = build_image(output, python, packages or (), dockerfile, shell)
    size, cid = output.stat().st_size, str(cid_of_path(output))
    if json:
        emit({"path": str(output), "cid": cid, "imageId": f"sha256:{image_id}", "bytes": size})
    else:
        typer.echo(f"{output}  {size_text(size)}\ncid      {cid}")


def build_image(
    output: Path,
    is_python: bool,
    packages: Sequence[str],
    dockerfile: Path | None,
    has_shell: bool = False,
) -> str:
    """Writes the archive and returns the image's id in hex. UsageError says what is missing."""
    if is_python == (dockerfile is not None):
        raise UsageError(
            "image build: give either --python or --dockerfile; try quorate image build --python "
            "-o hello.tar"
        )
    if (packages or has_shell) and dockerfile is not None:
        raise UsageError(
            "--with, --shell: they go with --python; a Dockerfile installs its own packages"
        )
    if output.is_dir():
        raise UsageError(
            f"{output} is a folder; give the archive to write, such as {output / 'hello.tar'}"
        )
    try:
        if dockerfile is None:
            return build_python_image(output, packages, has_shell).config_digest
        engine = needed_engine()
        output.parent.mkdir(parents=True, exist_ok=True)
        engine.export(engine.build(dockerfile), output)
        return read_archive(output).config_digest
    except Refused as refused:
        raise UsageError(f"image build: {refused.detail}") from refused
