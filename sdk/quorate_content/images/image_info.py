"""What an image archive says about its image, and the bounds on one archive."""

import posixpath
from dataclasses import dataclass

from quorate_protocol.refusals import Code, Refused

LABEL_PYTHON = "quorate.python"
LABEL_SHELL = "quorate.shell"
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds on one archive. An ordinary machine-learning image stays far below them."""

    archive_bytes: int = 64 << 30
    unpacked_bytes: int = 256 << 30  # total of all layers
    # Unpacked bytes beyond the free amount may be at most `expansion` times the archive. Otherwise
    # a small archive of zeros could keep a provider unpacking for hours.
    expansion: int = 50
    expansion_free_bytes: int = 1 << 30
    config_bytes: int = 1 << 20
    layers: int = 127
    members: int = 2_000_000
    path_bytes: int = 4096
    env: int = 512
    words: int = 1024  # in entry point and command together
    words_bytes: int = (
        128 << 10
    ) - 1  # in these and the environment; Linux accepts no longer single argument
    volumes: int = 64


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image says about itself. `config_digest` is hex and equals the id that an engine
    gives the image. `has_env` says whether the image has /usr/bin/env.
    """

    config_digest: str
    architecture: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    working_dir: str
    labels: tuple[tuple[str, str], ...]
    diff_ids: tuple[str, ...]
    layers: tuple[str, ...]  # member names in the archive, lowest layer first
    config_name: str
    has_shell: bool
    has_env: bool
    volumes: tuple[str, ...] = ()  # as the image declares them: any text
    unpacked_bytes: int = 0  # total of all layers

    def label(self, name: str) -> str | None:
        return dict(self.labels).get(name)


def refuse_shell_command(info: ImageInfo, argv: tuple[str, ...]) -> None:
    """Raises `Refused(MALFORMED)` if the command starts a shell that the image does not have."""
    if argv and posixpath.basename(argv[0]) in SHELLS and not info.has_shell:
        raise Refused(
            Code.MALFORMED,
            f"command: the image has no shell to run {argv[0]}; give the command as a list of "
            "words (argv), or use an image that has /bin/sh",
        )
