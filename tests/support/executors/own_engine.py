"""A container engine for one test, which the test may stop and kill."""

import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

from support.requirements import absent

UP_SECONDS = 60.0
TRIES = 3
DOWN_SECONDS = 60.0
ANSWER_SECONDS = 5.0
NETWORK = "10.213.{}.1/24"


class OwnEngine:
    """`dockerd` with its own folders, socket and bridge. Needs root."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/sock"
        self._folder = folder
        self._bridge = "qt" + uuid.uuid4().hex[:8]
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Makes the bridge and starts the engine. Skips the test where the machine does not
        allow it.
        """
        made = subprocess.run(
            ["ip", "link", "add", self._bridge, "type", "bridge"],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            absent("own-engine", f"no bridge can be made ({made.stderr.strip()})")
        number = NETWORK.format(os.getpid() % 250)
        subprocess.run(["ip", "addr", "add", number, "dev", self._bridge], check=True)
        subprocess.run(["ip", "link", "set", self._bridge, "up"], check=True)
        self.start()

    def start(self) -> None:
        """Starts the engine and waits until it answers.

        After a kill it may need a second try, because its containerd is still ending.
        """
        self._end_containerd()
        for _ in range(TRIES):
            if self._start_once():
                return
        absent(
            "own-engine", f"it does not start here ({(self._folder / 'log').read_text()[-300:]})"
        )

    def _end_containerd(self) -> None:
        """Ends the containerd that a killed engine left, as the next engine does after 15 s. It
        takes an ended one for a running one until somebody reaps it, so its pid file goes too.
        """
        file = self._folder / "exec" / "containerd" / "containerd.pid"
        try:
            number = int(file.read_text())
            if _program(number) == "containerd":
                os.kill(number, signal.SIGTERM)
        except (OSError, ValueError):
            return  # there is none
        limit = time.monotonic() + DOWN_SECONDS
        while _program(number) == "containerd" and time.monotonic() < limit:
            time.sleep(0.05)
        file.unlink()

    def _start_once(self) -> bool:
        folder = self._folder
        words = [
            "--data-root",
            folder / "data",
            "--exec-root",
            folder / "exec",
            "--pidfile",
            folder / "pid",
            "-H",
            self.url,
        ]
        words += [
            "--bridge",
            self._bridge,
            "--iptables=false",
            "--ip-masq=false",
            "--ip-forward=false",
        ]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", *map(str, words)], stdout=log, stderr=log, start_new_session=True
            )
        limit = time.monotonic() + UP_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > limit:
                return False
            time.sleep(0.1)
        return True

    def stop(self, number: signal.Signals) -> None:
        """Stops the engine: by SIGTERM as for an upgrade, or by SIGKILL."""
        assert self._process is not None, "it was started"
        self._process.send_signal(number)
        self._process.wait(DOWN_SECONDS)

    def close(self) -> None:
        """Ends the engine and removes everything that it holds."""
        if self._process is not None:
            if self._process.poll() is not None:
                self.start()  # a kill left containerd running, and only an engine ends it
            self.stop(signal.SIGTERM)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        unmount_below(
            self._folder
            # After each kill an engine mounts its data folder upon itself once more, and leaves
            # the mounts.
        )

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(ANSWER_SECONDS)
            try:
                link.connect(self.url.removeprefix("unix://"))
                link.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
                return b" 200 " in link.recv(4096)
            except OSError:
                return False  # the engine does not answer yet


def _program(process: int) -> str:
    """Returns the name of a process's program, or "" if it has ended."""
    try:
        return Path(f"/proc/{process}/exe").readlink().name
    except OSError:
        return ""


def mounts_below(folder: Path) -> list[str]:
    """Returns every mount at or below `folder`, innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted(
        (point for point in points if Path(point).is_relative_to(folder)), key=len, reverse=True
    )


def unmount_below(folder: Path) -> None:
    """Removes every mount at or below `folder`.

    Raises CalledProcessError if a mount stays, because pytest could not remove the folder then.
    """
    for point in mounts_below(folder):
        subprocess.run(["umount", point], check=True, capture_output=True)
