"""A private PostgreSQL server for tests, with its own folder and Unix socket and one user.

PostgreSQL refuses to run as root, so tests that run as root start it as the system user `postgres`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ACCOUNT = "postgres"
OWNER = "quorate"
START_SECONDS = 60
OPTIONS = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=20")


def program(name: str) -> str:
    """Returns the path of one of PostgreSQL's programs. Debian keeps them off PATH."""
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None
    )
    assert found is not None, "support.requirements has probed for it"
    return found


class PostgresServer:
    """One server. `start` and `stop` may be called as often as a test needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        data = folder / "data"
        command = [program("initdb"), "-D", data, "-U", OWNER, "-A", "trust", "--no-sync"]
        subprocess.run(
            command, check=True, capture_output=True, cwd=folder, timeout=START_SECONDS, **_user()
        )

    def start(self) -> None:
        """Returns once the server takes connections."""
        command = [program("postgres"), "-D", self.folder / "data", "-k", self.folder, *OPTIONS]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **_user()
            )
        deadline = time.monotonic() + START_SECONDS
        ask = [program("pg_isready"), "-q", "-h", self.folder, "-U", OWNER, "-d", "postgres"]
        while subprocess.run(ask, check=False, timeout=START_SECONDS).returncode:
            text = (self.folder / "log").read_text()
            assert self._process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends all connections and the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_SECONDS)
            self._process = None

    def create_database(self, name: str) -> str:
        """Makes an empty database and returns its URL."""
        command = [program("createdb"), "-h", self.folder, "-U", OWNER, name]
        subprocess.run(command, check=True, capture_output=True, timeout=START_SECONDS)
        return f"postgresql+asyncpg://{OWNER}@/{name}?host={self.folder}"


def _user() -> dict[str, Any]:
    return {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Yields a running server in a temporary folder, which is deleted at the end."""
    # a short path, because a socket's path has at most 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, ACCOUNT, ACCOUNT)
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
