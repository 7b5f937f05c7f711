"""The lock, the free ports and the `devnet.json` of a devnet."""

import fcntl
import json
import os
import shlex
import socket
from pathlib import Path
from types import TracebackType

from quorate_devnet.market.config import MARKER, DevnetConfig
from quorate_runtime.files import FOLDER_MODE, write_atomic


class Lock:
    """Allows one devnet per folder.

    Raises ValueError if another one runs there. The kernel drops the lock with its process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> "Lock":
        self._folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        # Locks the folder itself. A lock file inside would be deleted when the folder is emptied,
        # and one beside it would stay.
        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            remedy = (
                f"end it: quorate devnet down --dir {shlex.quote(str(self._folder))}; or "
                "choose another folder with --dir"
            )
            raise ValueError(f"another devnet runs in {self._folder}; {remedy}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)


def free_port(host: str) -> int:
    """Returns a port that is free now. It is chosen in advance, because a restarted part must use
    the same port.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def write_devnet_file(facts: dict[str, object], config: DevnetConfig) -> None:
    """Writes `devnet.json` whole or not at all. Its presence says that everything is up."""
    text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
    write_atomic(config.folder / MARKER, text.encode())
