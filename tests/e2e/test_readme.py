"""Runs the three starts of README.md, and what docs/howto/client.md adds to the first, exactly as
written.

The test only adds what it must choose: processes instead of containers, three providers instead of
five, free ports.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 5
BOUND_SECONDS = 400.0  # 45 seconds with two free cores
ACTIVATE = ". .venv/bin/activate"
FROM_REGISTRY = "quorate run python:3.12 "
ADDED = {
    "quorate devnet up": " --executor process --providers 3",
    "quorate node init": " --executor process --port 0",
    "quorate coordinator init": " --port 0",
}
TYPIST = r"""
import os, shlex, sys
from quorate.cli.main import run_main
for line in sys.stdin.read().replace("\\\n", " ").splitlines():
    words = [os.path.expanduser(word) for word in shlex.split(line, comments=True)]
    assert words.pop(0) == "quorate", line
    if code := run_main(words):
        sys.exit(f"{line} ended with {code}")
"""


def start_of(role: str) -> list[str]:
    """Returns the lines of the first shell block under a role's heading."""
    text = (ROOT / "README.md").read_text()
    found = re.search(
        rf"^## Start as an? {role}\n.*?^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"README.md has a shell block under 'Start as a(n) {role}'"
    return found[1].splitlines()


def howto(name: str) -> list[list[str]]:
    """Returns the lines of each shell block of a guide in order."""
    text = (ROOT / "docs" / "howto" / name).read_text()
    return [
        block.splitlines()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


class NewUser:
    """A user in the root of a clone, with an installed .venv and a passphrase file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit = time.monotonic() + BOUND_SECONDS
        self.serving: list[subprocess.Popen[bytes]] = []
        (folder / ".venv").symlink_to(sys.prefix)
        shutil.copytree(
            ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__")
        )
        password = folder / "password"
        password.write_text("correct horse\n")
        password.chmod(0o600)
        dropped = ("QUORATE_", "VIRTUAL_ENV", "PYTHONPATH", "XDG_")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(dropped)
        }
        self.environment = {
            **environment,
            "QUORATE_PASSWORD_FILE": str(password),
            "HOME": str(folder),
        }

    def type(self, lines: list[str]) -> str:
        """Runs lines in a shell and returns what they print. Each must succeed."""
        command = ["bash", "-e", "-c", "\n".join(map(added, lines))]
        left = max(1.0, self.limit - time.monotonic())
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_many(self, lines: list[str]) -> str:
        """Like `type`, for lines that are all `quorate ...`, in one process, because starting the
        program takes most of the time.
        """
        text, left = "\n".join(map(added, lines)), max(1.0, self.limit - time.monotonic())
        command = [f"{sys.prefix}/bin/python", "-c", TYPIST]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def serve(self, lines: list[str], phrase: str) -> str:
        """Runs lines of which the last one serves, and returns what they print once `phrase`
        appears.
        """
        log = self.folder / f"serving-{len(self.serving)}.log"
        command = ["bash", "-e", "-c", "\n".join([*map(added, lines[:-1]), f"exec {lines[-1]}"])]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.serving.append(process)
        while phrase not in (told := log.read_text()):
            assert process.poll() is None and time.monotonic() < self.limit, f"{lines}\n{told}"
            time.sleep(0.1)
        return told

    def leave(self) -> None:
        """Presses Ctrl-C in every terminal, the devnet's last."""
        for process in self.serving:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        try:
            codes = [process.wait(60) for process in self.serving]
        finally:
            for process in self.serving:
                process.kill()
                process.wait()
            down = [f"{sys.prefix}/bin/quorate", "devnet", "down"]
            subprocess.run(
                down,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                timeout=120,
                check=False,
            )  # it may be down
        assert codes == [0] * len(codes), "a daemon ends in order when it is interrupted"


def added(line: str) -> str:
    """Returns a line with the test's own options and without its comment."""
    line = re.sub(r"  +# .*$", "", line)
    return line + next((more for start, more in ADDED.items() if line.startswith(start)), "")


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[NewUser]:
    if sys.prefix == sys.base_prefix:
        pytest.skip(
            "venv: the README's starts begin with `. .venv/bin/activate`, and these tests do not "
            "run in a venv"
        )
    somebody = NewUser(tmp_path)
    try:
        yield somebody
    finally:
        somebody.leave()


@pytest.mark.parametrize("role", ["client", "owner", "operator"])
def test_a_start_is_short(role: str) -> None:
    assert 1 <= len(start_of(role)) <= LINES_MAX


def test_the_three_starts_work_as_written(new_user: NewUser) -> None:
    told = new_user.type(start_of("client"))
    assert "accepted (quorum-2): 2 providers agree" in told
    assert "78498 primes below a million" in told, "the output of the job"

    follow_the_clients_guide(new_user)

    new_user.serve(start_of("owner"), "on offer: waiting for jobs")
    # The offers follow the chain: asked until they show the new provider, which is the cheapest.
    while "  0.10 " not in new_user.type([ACTIVATE, "quorate --devnet devnet/devnet.json offers"]):
        assert time.monotonic() < new_user.limit, "the owner's offer is listed"
        time.sleep(0.2)

    new_user.serve(start_of("operator"), "serves at http://127.0.0.1:")
    assert "has ended" in new_user.type([ACTIVATE, "quorate devnet down"])


def follow_the_clients_guide(new_user: NewUser) -> None:
    """Runs the commands of docs/howto/client.md on the running market with a new profile.

    Those that need an image of a registry are left out: no test reaches one. So are those that need
    the deployment.json of a market, which a devnet does not have, and `reclaim`, which waits days.
    """
    (new_user.folder / "table.csv").write_text("a,b\n1,2\n")
    url = json.loads((new_user.folder / "devnet" / "devnet.json").read_text())["coordinator"]["url"]
    lines = [
        line.replace("http://127.0.0.1:7700", url)
        for block in howto("client.md")
        for line in block
        if not line.startswith((FROM_REGISTRY, "quorate reclaim")) and "--deployment" not in line
    ]
    first = next(number for number, line in enumerate(lines) if "RECEIPT" in line)
    told = new_user.type_many(lines[:first])
    assert "accepted (quorum-2): 2 providers agree" in told
    receipt = re.search(r"^receipt +(\S+)$", told, re.MULTILINE)
    assert receipt, told
    told = new_user.type_many([line.replace("RECEIPT", receipt[1]) for line in lines[first:]])
    assert "\nvalid: " in told and "5.00 USD withdrawn to" in told, told
    assert (new_user.folder / "result" / "copy").read_text() == "a,b\n1,2\n"
