"""Kills a devnet's own process at a named point of its start or end.

Afterwards nothing of the devnet may be left, and its folder must work for the next start. If the
market was up before the kill, a job is running: its container, sandbox or process must be ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from quorate.images import build_python_image
from quorate_devnet.market.config import PASSPHRASE, DevnetConfig, ExecutorChoice
from quorate_node.executors.base.hardened_profile import LABEL_OWNER
from quorate_node.executors.docker.engine_connection import connect
from quorate_runtime.process.crash_points import CRASH_VARIABLE
from support.crash.crash_processes import processes

CLIENT = Path(__file__).with_name("crash_client.py")
UP_SECONDS = 90.0
GONE_SECONDS = 40.0
HELD_SECONDS = 30.0
JOB_SECONDS = 60  # longer than any test waits for the job
# with fewer providers nobody could audit, and the coordinator would refuse an ordinary order
PROVIDERS = 3
POLL_SECONDS = 0.1
LATER = {
    "devnet.before-child": 3,
    "devnet.after-child": 4,
    "wallet.before-send": 20,
    "wallet.after-send": 22,
}  # point -> number of the pass at which the process dies


class KilledDevnet:
    """`quorate devnet up`, started many times in one folder."""

    def __init__(self, folder: Path, executor: ExecutorChoice) -> None:
        self.folder, self.executor = folder, executor
        self._log = folder.with_name("up.log")
        self._image = build_python_image(folder.with_name("image.tar"), ()).path
        self.held = 0  # number of ends at which a job was running

    def die_at(self, point: str) -> str:
        """Starts the devnet and kills it at `point`; returns the problem, or "" for none."""
        process, client = self._start(f"{point}:{LATER.get(point, 1)}"), None
        limit = time.monotonic() + UP_SECONDS
        while process.poll() is None and time.monotonic() < limit:
            if client is None and self._is_up(process.pid):
                client = self._order()
                process.send_signal(signal.SIGTERM)  # all points that are left come later
            time.sleep(POLL_SECONDS)
        if process.poll() is None:
            process.kill()
        status = process.wait()
        _end(client)
        if status != -signal.SIGKILL:
            return f"{point}: not passed, it ended with {status}: {self._log.read_text()[-400:]}"
        left = self._left()
        return f"{point}: left behind: {left}" if left else ""

    def live(self) -> str:
        """Starts and ends the devnet without a kill; returns the problem, or "" for none."""
        process, client = self._start(""), None
        limit = time.monotonic() + UP_SECONDS
        while not self._is_up(process.pid) and process.poll() is None and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        if process.poll() is None:
            client = self._order()
        process.send_signal(signal.SIGTERM)
        status = process.wait(GONE_SECONDS)
        _end(client)
        left = self._left()
        return (
            f"ended with {status}, {left} is left: {self._log.read_text()[-600:]}"
            if status or left
            else ""
        )

    def _left(self) -> list[str]:
        """Processes, mounts and containers that are left after some time."""
        limit = time.monotonic() + GONE_SECONDS
        while (
            left := [*processes(self.folder), *self._mounts(), *self._containers()]
        ) and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)
        return left

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line.split(" ")[4] for line in lines if str(self.folder) in line]

    def _containers(self) -> list[str]:
        if not self.executor.is_engine:
            return []
        api, config = connect(), DevnetConfig(self.folder)
        try:
            owners = [
                {"label": f"{LABEL_OWNER}={config.owner(index)}"}
                for index in range(PROVIDERS)
                if (config.provider_home(index) / "keys" / "owner.json").exists()
            ]
            found = [
                item["Names"][0]
                for owner in owners
                for item in api.containers(all=True, filters=owner)
            ]
            return found + [
                item["Name"]
                for owner in owners
                for item in api.volumes(filters=owner)["Volumes"] or ()
            ]
        finally:
            api.close()

    def _order(self) -> "subprocess.Popen[bytes]":
        """Starts a client; returns when its job runs."""
        plan = {
            "home": str(self.folder / "client-0"),
            "password": PASSPHRASE,
            "name": f"long-{self.held}",
            "image": str(self._image),
            "seconds": str(JOB_SECONDS),
        }
        client = subprocess.Popen(
            [sys.executable, str(CLIENT), json.dumps(plan)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + HELD_SECONDS
        while time.monotonic() < limit and client.poll() is None:
            if any(
                (self.folder / f"provider-{index}" / self.executor.value).glob("*")
                for index in range(PROVIDERS)
            ):
                self.held += 1
                break
            time.sleep(POLL_SECONDS)
        return client

    def _is_up(self, pid: int) -> bool:
        """Returns whether this devnet reports that it is up. An earlier devnet may have left its
        file.
        """
        try:
            return bool(json.loads((self.folder / "devnet.json").read_text())["pid"] == pid)
        except FileNotFoundError:
            return False  # the file is not complete yet

    def _start(self, point: str) -> "subprocess.Popen[bytes]":
        words = [
            "up",
            "--dir",
            str(self.folder),
            "--providers",
            str(PROVIDERS),
            "--clients",
            "1",
            "--executor",
            self.executor.value,
        ]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "quorate_devnet", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {CRASH_VARIABLE: point},
            )


def _end(client: "subprocess.Popen[bytes] | None") -> None:
    if client is not None:
        client.kill()
        client.wait()
