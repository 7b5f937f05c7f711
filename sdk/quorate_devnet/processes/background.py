"""A devnet in the background: started so that it outlives its terminal, and ended by name of its
folder.
"""

import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from quorate_devnet.config import MARKER
from quorate_protocol.refusals import Unavailable

UP_SECONDS = 150.0
DOWN_SECONDS = 60.0
POLL_SECONDS = 0.1


def start(words: Sequence[str], folder: Path, tell: Callable[[str], None]) -> int:
    """Runs `quorate devnet up WORDS` as a session of its own; what it says is passed on until it
    is up. 0, or its exit status.

    Unavailable when it does not come up in time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = (
        folder.parent / f".{folder.name}.{os.getpid()}.log"
    )  # beside the folder, which is emptied at the start
    try:
        return _start(words, folder, path, tell)
    finally:
        path.unlink(missing_ok=True)  # everything in it was told, or it has moved


def _start(words: Sequence[str], folder: Path, path: Path, tell: Callable[[str], None]) -> int:
    with path.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "quorate_devnet", "up", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    limit = time.monotonic() + UP_SECONDS
    try:
        with path.open() as told:
            while time.monotonic() < limit:
                status = child.poll()
                for line in told:
                    tell(line.rstrip("\n"))
                if status is not None:
                    return status or 1  # it ended although nobody asked it to
                if _is_up(folder, child.pid):
                    os.replace(path, folder / "logs" / "up.log")
                    return 0
                time.sleep(POLL_SECONDS)
        raise Unavailable(
            f"the devnet did not come up within {UP_SECONDS:g} s; see {folder / 'logs'}"
        )
    except BaseException:
        child.terminate()
        child.wait(DOWN_SECONDS)
        raise


def stop(folder: Path) -> None:
    """Ends the devnet of a folder, however it was started, and waits. Unavailable when none is
    up or it does not end.
    """
    process = _process_of(folder)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], DOWN_SECONDS)[0]:
            raise Unavailable(f"the devnet in {folder} did not end within {DOWN_SECONDS:g} s")
    finally:
        os.close(process)


def _process_of(folder: Path) -> int:
    """A descriptor of the devnet's process. Its lock is looked at last: while it is held, the
    number is still that process's.
    """
    remedy = f"start one: quorate devnet up --detach --dir {shlex.quote(str(folder))}"
    try:
        descriptor = os.pidfd_open(json.loads((folder / MARKER).read_text())["pid"])
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"no devnet is up in {folder}; {remedy}") from error
    if not _is_locked(folder):
        raise Unavailable(
            f"no devnet is up in {folder}; its {MARKER} was left by one that was killed; {remedy}"
        )
    return descriptor


def _is_up(folder: Path, pid: int) -> bool:
    try:
        return bool(json.loads((folder / MARKER).read_text())["pid"] == pid)
    except FileNotFoundError:
        return False  # not yet


def _is_locked(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True  # somebody holds it, which is the answer
    finally:
        os.close(handle)
    return False
