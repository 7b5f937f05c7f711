"""Tests that a devnet leaves nothing behind after Ctrl-C, nor after kill -9 of its parent during
a job.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.executors.own_engine import mounts_below

UP_SECONDS = 150
GONE_SECONDS = 40
QUORATE = str(Path(sys.executable).with_name("quorate"))
LONG_JOB = ["python3", "-c", "import time; time.sleep(600)"]


class Up:
    """`quorate devnet up` as its own process, in a folder whose name marks everything that belongs
    to it.
    """

    def __init__(self, folder: Path, executor: str) -> None:
        self.folder = folder
        command = [
            sys.executable,
            "-m",
            "quorate_devnet",
            "up",
            "--dir",
            str(folder),
            "--providers",
            "3",
            "--clients",
            "1",
            "--rentals",
        ]
        said = folder.with_name("up.log")
        with said.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--executor", executor], stdout=log, stderr=log, start_new_session=True
            )
        wait_for(
            lambda: (folder / "devnet.json").exists() or self.process.poll() is not None,
            UP_SECONDS,
            "the devnet is up",
        )
        assert self.process.poll() is None, said.read_text()

    def run_long_job(self, image: Path) -> None:
        """Orders a job of ten minutes and returns once its program runs."""
        bounds = ("--max-price", "10", "--max-duration", "15m")
        self._order("run", "-d", *bounds, str(image), "--", *LONG_JOB)

    def rent(self, image: Path) -> None:
        """Returns once the machine runs."""
        self._order("rent", "--max-price", "9", "--secret", "A=env:PATH", "--yes", str(image))

    def _order(self, *words: str) -> None:
        command = [QUORATE, "--devnet", str(self.folder / "devnet.json"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self) -> list[str]:
        """Returns the command lines of all processes that name this folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (
                        (entry / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                except OSError:
                    continue  # it ended during the read
                if str(self.folder) in words or self._is_descendant(entry):
                    found.append(f"{entry.name}: {words}")
        return found

    def _is_descendant(self, entry: Path) -> bool:
        try:
            return str(self.folder) in os.readlink(entry / "cwd")
        except OSError:
            return False  # it ended, or belongs to another user


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


@pytest.fixture
def up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    devnet = Up(tmp_path / "devnet", request.param)
    yield devnet
    if devnet.process.poll() is None:
        devnet.process.kill()
    devnet.process.wait()
    wait_for(lambda: not devnet.processes(), GONE_SECONDS, "the end of what the test left")


@pytest.mark.parametrize("up", ["process"], indirect=True)
def test_an_interrupt_ends_everything(up: Up, image: Path) -> None:
    up.run_long_job(image)
    wait_for(
        lambda: [line for line in up.processes() if "time.sleep(600)" in line], 30, "the job runs"
    )
    assert len(up.processes()) >= 7, (
        "chain, beacon, coordinator and providers are processes of their own"
    )
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(GONE_SECONDS) == 0
    assert up.processes() == []
    assert not (up.folder / "devnet.json").exists(), "the file says that a devnet is up"


@pytest.mark.parametrize("up", ["process"], indirect=True)
def test_kill_9_of_the_parent_ends_everything(up: Up, image: Path) -> None:
    up.run_long_job(image)
    wait_for(
        lambda: [line for line in up.processes() if "time.sleep(600)" in line], 30, "the job runs"
    )
    up.process.kill()
    wait_for(lambda: not up.processes(), GONE_SECONDS, f"everything has ended: {up.processes()}")


@pytest.mark.docker
@pytest.mark.parametrize("up", ["docker"], indirect=True)
def test_kill_9_of_the_parent_removes_containers(up: Up, image: Path) -> None:
    import docker

    from quorate_devnet.market.config import DevnetConfig

    config = DevnetConfig(up.folder, 3)
    client = docker.from_env()

    def held() -> list[str]:
        owned = [{"label": f"quorate.owner={config.owner(index)}"} for index in range(3)]
        containers = [
            item.name
            for filters in owned
            for item in client.containers.list(all=True, filters=filters, ignore_removed=True)
        ]
        return containers + [
            item.name for filters in owned for item in client.volumes.list(filters=filters)
        ]

    try:
        up.run_long_job(image)
        wait_for(held, 30, "the job's container runs")
        up.process.kill()
        wait_for(
            lambda: not held() and not up.processes(),
            GONE_SECONDS,
            "containers, volumes and processes are gone",
        )
    finally:
        client.close()


@pytest.mark.docker
@pytest.mark.parametrize("up", ["docker"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_of_a_rental_stays_after_the_end(
    up: Up, image: Path, number: signal.Signals
) -> None:
    """Its secrets are in a file system of memory, and a process of its own watches its end."""
    up.rent(image)
    keepers = [line for line in up.processes() if "lease_keeper" in line]
    points = mounts_below(up.folder)
    assert keepers and any("/secrets/" in point for point in points), points
    up.process.send_signal(number)
    wait_for(
        lambda: not up.processes() and not mounts_below(up.folder),
        GONE_SECONDS,
        f"{up.processes()} and {mounts_below(up.folder)} are gone",
    )


def test_a_folder_of_other_files_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("three years of work")
    command = [
        sys.executable,
        "-m",
        "quorate_devnet",
        "up",
        "--dir",
        str(tmp_path),
        "--executor",
        "noop",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and "thesis.tex" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "three years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
