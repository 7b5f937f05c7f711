"""Starts a devnet in the background, so that it outlives its terminal, and ends the devnet of a
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

from quorate_devnet.market.config import MARKER
from quorate_protocol.refusals import Unavailable

UP_SECONDS = 150.0
DOWN_SECONDS = 60.0
POLL_SECONDS = 0.1


def start(words: Sequence[str], folder: Path, notice: Callable[[str], None]) -> int:
    """Runs `quorate devnet up WORDS` in its own session and passes its messages on until it is up.

    Returns 0 or its exit status. Raises Unavailable if it does not come up in time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, which the start empties.
    path = folder.parent / f".{folder.name}.{os.getpid()}.log"
    try:
        return _start(words, folder, path, notice)
    finally:
        path.unlink(missing_ok=True)  # its lines were passed on, or it has moved


def _start(words: Sequence[str], folder: Path, path: Path, notice: Callable[[str], None]) -> int:
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
        with path.open() as log_file:
            while time.monotonic() < limit:
                status = child.poll()
                for line in log_file:
                    notice(line.rstrip("\n"))
                if status is not None:
                    return status or 1  # it ended by itself
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
    """Ends the devnet of a folder, however it was started, and waits.

    Raises Unavailable if none runs or it does not end.
    """
    process = _process_of(folder)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], DOWN_SECONDS)[0]:
            raise Unavailable(f"the devnet in {folder} did not end within {DOWN_SECONDS:g} s")
    finally:
        os.close(process)


def _process_of(folder: Path) -> int:
    """Returns a descriptor of the devnet's process.

    The lock is checked last: while it is held, the process id still belongs to the devnet.
    """
    remedy = f"start one: quorate devnet up --detach --dir {shlex.quote(str(folder))}"
    try:
        descriptor = os.pidfd_open(json.loads((folder / MARKER).read_text())["pid"])
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"no devnet is up in {folder}; {remedy}") from error
    if not _is_locked(folder):
        raise Unavailable(
            f"no devnet is up in {folder}; its {MARKER} remains from one that was killed; {remedy}"
        )
    return descriptor


def _is_up(folder: Path, pid: int) -> bool:
    try:
        return bool(json.loads((folder / MARKER).read_text())["pid"] == pid)
    except FileNotFoundError:
        return False  # not up yet


def _is_locked(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True  # another process holds it
    finally:
        os.close(handle)
    return False
