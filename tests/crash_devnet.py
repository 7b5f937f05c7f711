"""A devnet's own process killed at a named place of its beginning or end: nothing of it is left, and its folder is good for the next."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from quorate_runtime.crash import CRASH_VARIABLE

UP_SECONDS = 90.0
GONE_SECONDS = 40.0
POLL_SECONDS = 0.1
LATER = {"devnet.before-child": 3, "devnet.after-child": 4, "wallet.before-send": 20, "wallet.after-send": 22}  # which pass


class Mortal:
    """`quorate devnet up` in one folder, again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder.with_name("up.log")

    def die_at(self, point: str) -> str:
        """One start that is killed; what was wrong, "" for nothing."""
        process = self._start(f"{point}:{LATER.get(point, 1)}")
        limit = time.monotonic() + UP_SECONDS
        while process.poll() is None and time.monotonic() < limit:
            if self._is_up(process.pid):
                process.send_signal(signal.SIGTERM)  # only what comes after this is left to be killed
            time.sleep(POLL_SECONDS)
        if process.poll() is None:
            process.kill()
        if process.wait() != -signal.SIGKILL:
            return f"{point}: not passed, it ended with {process.returncode}: {self._log.read_text()[-400:]}"
        limit = time.monotonic() + GONE_SECONDS
        while (left := self.processes()) and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        return f"{point}: left behind: {left}" if left else ""

    def live(self) -> str:
        """One start and end that nobody disturbs."""
        process = self._start("")
        limit = time.monotonic() + UP_SECONDS
        while not self._is_up(process.pid) and process.poll() is None and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        status = process.wait(GONE_SECONDS)
        return f"ended with {status}: {self._log.read_text()[-600:]}" if status else ""

    def processes(self) -> list[str]:
        """Command lines of everything that names the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue  # it ended while we looked
                found += [words] if str(self.folder) in words else []
        return found

    def _is_up(self, pid: int) -> bool:
        """Its own word, and not what one that was killed has left."""
        try:
            return bool(json.loads((self.folder / "devnet.json").read_text())["pid"] == pid)
        except FileNotFoundError:
            return False  # not yet

    def _start(self, point: str) -> "subprocess.Popen[bytes]":
        words = ["up", "--dir", str(self.folder), "--providers", "2", "--clients", "1", "--executor", "noop"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "quorate_devnet", *words], stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {CRASH_VARIABLE: point},
            )  # fmt: skip
