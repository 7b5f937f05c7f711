"""Ends the containers of rentals whose daemon was killed and does not come back.

`extend` says until when a container may stay without word from the daemon. A small process beside
the daemon, which outlives it, removes those whose time is over with all that the daemon made for
them. It ends when none is left.

Each is an empty file, whose time of change is that time by the clock since the machine's start: a
full disk has room for it, and no change of the date moves it.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import docker
import docker.errors
import requests

from quorate_node.executors.base import cgroups
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import (
    release_folder,
    release_secrets,
    remove_container,
)
from quorate_protocol.refusals import Unavailable

LOOK_SECONDS = 5.0
START_SECONDS = 180.0  # that a container has before its daemon first extends its time
_LOCK = ".keeper"  # locked by the keeper, whose process id it holds
_ENDS = 20  # looks at a keeper that was killed


class LeaseKeeper:
    """`home`: the folder of the daemon's containers. `prefix` and the lease make a name."""

    def __init__(self, home: Path, prefix: str, engine_url: str | None = None) -> None:
        self._home, self._prefix, self._engine_url = home, prefix, engine_url
        self._started: subprocess.Popen[bytes] | None = None

    def extend(self, lease_id: str, seconds: float) -> None:
        """The container may stay so long from now on. Blocks for a moment. Raises Unavailable."""
        folder, until = folder_of(self._home), time.monotonic() + seconds
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / lease_id).touch()
            os.utime(folder / lease_id, (until, until))
            if self._started is not None and self._started.poll() is None:
                return
            with _locked(folder) as is_free:
                if not is_free:
                    return
            words = [str(self._home), self._prefix, self._engine_url or ""]
            null = subprocess.DEVNULL
            # It outlives this process.
            self._started = subprocess.Popen(
                [sys.executable, "-m", __name__, *words],
                stdin=null,
                stdout=null,
                stderr=null,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise Unavailable(f"nobody watches that rentals end: {error}", LOOK_SECONDS) from error


def folder_of(home: Path) -> Path:
    return home.with_name(f"{home.name}-rented-until")


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yields whether no keeper looks. Nobody else does until the end of the block."""
    with (folder / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False  # not re-raised: it is the answer
            return
        yield True


def keep(home: Path, prefix: str, engine_url: str | None) -> None:
    """Returns when no container is named any more, or another keeper looks."""
    folder = folder_of(home)
    while _named(folder):
        with _locked(folder) as is_free:
            if not is_free:
                return
            (folder / _LOCK).write_text(str(os.getpid()))
            while named := _named(folder):
                for file in named:
                    _look_at(home, prefix, file, engine_url)
                time.sleep(LOOK_SECONDS)
        # One that was named meanwhile is looked at, although its daemon saw the lock.


def _named(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [item for item in folder.iterdir() if item.name != _LOCK]


def _look_at(home: Path, prefix: str, file: Path, engine_url: str | None) -> None:
    """Forgets a container that is gone, and removes one whose time is over."""
    try:
        is_over = time.monotonic() > file.stat().st_mtime
        api = connect(engine_url)
        try:
            if is_over:
                _remove(api, home, prefix, file.name)
            else:
                api.inspect_container(prefix + file.name)
                return
        except docker.errors.NotFound:
            pass  # the daemon has removed it
        finally:
            api.close()
        file.unlink(missing_ok=True)
    except (OSError, Unavailable, docker.errors.DockerException, requests.RequestException):
        return  # not re-raised: the file or the engine is away; the next look tries again


def _remove(api: docker.APIClient, home: Path, prefix: str, lease_id: str) -> None:
    remove_container(api, prefix + lease_id)
    release_folder(home / lease_id)
    release_secrets(home, lease_id)
    cgroups.remove_lease_groups(lease_id)


def end_keeper(home: Path) -> None:
    """Of a daemon that will not start again: kills its keeper, and forgets what it looks at."""
    folder = folder_of(home)
    for _ in range(_ENDS):
        if not folder.is_dir():
            return
        with _locked(folder) as is_free:
            if is_free:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()
                return
            try:
                os.kill(int((folder / _LOCK).read_text()), SIGKILL)
            except (ValueError, ProcessLookupError):
                pass  # it has just begun or ended; the next look tells
        time.sleep(LOOK_SECONDS / _ENDS)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None)
