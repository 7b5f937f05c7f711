"""Makes an image of this Python, or has the local engine build one from a Dockerfile."""

from collections.abc import Sequence
from pathlib import Path

from quorate.base.errors import UsageError
from quorate.images import build_python_image, read_archive
from quorate.images.local_engine import needed_engine
from quorate_protocol.refusals import Refused


def build_image(
    output: Path, is_python: bool, packages: Sequence[str], dockerfile: Path | None
) -> str:
    """Writes the archive and returns the image's id in hex. UsageError says what is missing."""
    if is_python == (dockerfile is not None):
        raise UsageError(
            "image build: give either --python or --dockerfile; try quorate image build --python "
            "-o hello.tar"
        )
    if packages and dockerfile is not None:
        raise UsageError("--with: it goes with --python; a Dockerfile installs its own packages")
    if output.is_dir():
        raise UsageError(
            f"{output} is a folder; give the archive to write, such as {output / 'hello.tar'}"
        )
    try:
        if dockerfile is None:
            return build_python_image(output, packages).config_digest
        engine = needed_engine()
        output.parent.mkdir(parents=True, exist_ok=True)
        engine.export(engine.build(dockerfile), output)
        return read_archive(output).config_digest
    except Refused as refused:
        raise UsageError(f"image build: {refused.detail}") from refused
