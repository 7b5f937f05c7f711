"""Files and ports of a devnet."""

import fcntl
import json
import os
import shlex
import socket
from pathlib import Path
from types import TracebackType

from quorate_devnet.config import MARKER, DevnetConfig


class Lock:
    """One devnet a folder. ValueError when another one runs there; the kernel drops the lock
    with its process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> "Lock":
        """Takes it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # The folder itself: a lock file in it would be emptied away, one beside it would stay
        # behind.
        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            remedy = (
                f"end it: quorate devnet down --dir {shlex.quote(str(self._folder))}; or "
                f"name another folder with --dir"
            )
            raise ValueError(f"another devnet runs in {self._folder}; {remedy}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives it back."""
        os.close(self._handle)


def free_port(host: str) -> int:
    """A port nobody uses now. Named beforehand, because whoever restarts must come back to the
    same one.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def write_devnet_file(facts: dict[str, object], config: DevnetConfig) -> None:
    """`devnet.json`, whole or not at all; its presence says that everything is up."""
    part = config.folder / (MARKER + ".part")
    part.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    os.replace(part, config.folder / MARKER)
