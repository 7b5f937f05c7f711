"""The systemd units of docker/systemd: systemd accepts them, and they are as restricted as claimed.

Each unit is run here as systemd would run it, in a scratch root: its command line, its credential,
its notify socket, its way to stop.
"""

import asyncio
import contextlib
import json
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quorate_coordinator.cli.up import LEAVE_SECONDS
from quorate_devnet.chain.free_port import free_port
from quorate_devnet.market.genesis import give
from quorate_protocol.codec import canonical
from quorate_runtime.http.listener import WANTED
from support.cli_prompt import typed
from support.markets.coordinator_stage import deployed_stage
from support.markets.scripted_coordinator import stage

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "docker" / "systemd"
PROGRAM = "/opt/quorate/bin/quorate"
STATE = "/var/lib/quorate"
QUORATE = str(Path(sys.executable).parent / "quorate")
READY_SECONDS = 60.0
EXPOSURE_MAX = {
    "quorate-coordinator.service": 20,
    "quorate-node.service": 30,
}  # tenths; systemd's own scale ends at 100


def fields(name: str) -> dict[str, list[str]]:
    """Every assignment of a unit."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.systemd
@pytest.mark.parametrize(
    ("name", "dropin"),
    [
        ("quorate-coordinator.service", ""),
        ("quorate-node.service", ""),
        ("quorate-node.service", "quorate-node-bwrap.conf"),
        ("quorate-node.service", "quorate-node-rentals.conf"),
    ],
)
def test_systemd_accepts_the_units(name: str, dropin: str, tmp_path: Path) -> None:
    text = (
        (UNITS / name)
        .read_text()
        .replace(PROGRAM, "/bin/true")
        .replace("User=quorate", "User=root")
        .replace("Groups=docker", "Groups=")
    )
    (tmp_path / name).write_text(text)
    if dropin:
        (tmp_path / f"{name}.d").mkdir()
        (tmp_path / f"{name}.d" / "bwrap.conf").write_text((UNITS / dropin).read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


@pytest.mark.parametrize("name", sorted(EXPOSURE_MAX))
def test_a_long_start_and_an_orderly_end_are_not_killed(name: str) -> None:
    unit = fields(name)
    assert unit["TimeoutStartSec"] == ["infinity"] and unit["Restart"] == ["on-failure"]
    assert "StartLimitIntervalSec" not in unit and int(unit["RestartSec"][0]) * 5 > 10, (
        "systemd gives up after five starts in ten seconds"
    )
    assert int(unit["TimeoutStopSec"][0]) >= LEAVE_SECONDS + 20
    assert int(unit["LimitNOFILE"][0]) >= WANTED


@pytest.mark.systemd
@pytest.mark.parametrize("name", sorted(EXPOSURE_MAX))
def test_the_units_are_as_restricted_as_documented(name: str) -> None:
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE_MAX[name]}",
        str(UNITS / name),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-400:]


def test_the_daemon_keeps_its_gpus() -> None:
    """Either would leave only pseudo devices, the first one before systemd 253."""
    unit = fields("quorate-node.service")
    assert "ProtectClock" not in unit and "PrivateDevices" not in unit


@dataclass
class Started:
    """A program that a unit started. `told` receives its messages to the service manager."""

    process: subprocess.Popen[bytes]
    told: socket.socket
    home: Path
    log: Path

    def hears(self, wanted: bytes) -> None:
        """Waits until the program sends this message to its service manager."""
        while True:
            assert self.process.poll() is None or wanted.startswith(b"STOPPING"), (
                self.log.read_text()
            )
            lines = self.told.recv(4096).split(b"\n")
            if wanted in lines:
                return


@contextlib.contextmanager
def started(name: str, role: str, folder: Path) -> Iterator[Started]:
    """Starts a unit as systemd does: ExecStart, LoadCredential, NOTIFY_SOCKET, StateDirectory."""
    unit, home = fields(name), folder / role
    assert unit["StateDirectory"] == [f"quorate/{role}"] and unit["Type"] == ["notify"]
    (credential,) = (line.partition(":")[0] for line in unit["LoadCredential"])
    credentials = folder / "credentials"
    credentials.mkdir()
    (credentials / credential).write_text("devnet\n")
    (credentials / credential).chmod(stat.S_IRUSR)
    words = [
        word.replace(PROGRAM, QUORATE).replace(f"{STATE}/{role}", str(home))
        for word in shlex.split(unit["ExecStart"][0])
    ]
    assert str(home) in words
    environment = {
        "PATH": "/usr/bin:/bin",
        "NOTIFY_SOCKET": str(folder / "notify"),
        "CREDENTIALS_DIRECTORY": str(credentials),
        "HOME": str(folder),
        "WATCHDOG_USEC": str(int(unit["WatchdogSec"][0]) * 1_000_000),
    }
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        (folder / "log").open("wb") as log,
    ):
        manager.bind(environment["NOTIFY_SOCKET"])
        manager.settimeout(READY_SECONDS)
        process = subprocess.Popen(
            words, env=environment, cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            yield Started(process, manager, home, folder / "log")
        finally:
            process.kill()
            process.wait(20)


def initialise(folder: Path, *words: str) -> None:
    """Runs `init` with the passphrase that the credential will hold."""
    password = folder / "password"
    password.write_text("devnet\n")
    password.chmod(0o600)
    code, said = typed(*words, "--password-file", str(password))
    assert code == 0, said
    password.unlink()


def stop(unit: str, running: Started) -> None:
    """Sends SIGTERM; the program reports that it ends, and does so in time with status 0."""
    running.process.send_signal(signal.SIGTERM)
    running.hears(b"STOPPING=1")
    assert running.process.wait(float(fields(unit)["TimeoutStopSec"][0])) == 0, (
        running.log.read_text()
    )


async def test_the_node_unit_runs(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    async with stage(tmp_path / "stage") as market:
        where = (
            "--coordinator",
            market.coordinator.url,
            "--limits",
            "devnet",
            "--executor",
            "noop",
            "--port",
            "0",
            "--stake",
            "100",
        )
        await asyncio.to_thread(
            initialise, tmp_path, "node", "init", *where, "--home", str(tmp_path / "node")
        )
        with started("quorate-node.service", "node", tmp_path) as running:
            await asyncio.to_thread(running.hears, b"READY=1")
            code, told = await asyncio.to_thread(
                typed, "node", "health", "--home", str(running.home)
            )
            while "stake: " not in told:
                assert running.process.poll() is None, running.log.read_text()
                code, told = await asyncio.to_thread(
                    typed, "node", "health", "--home", str(running.home)
                )
            assert code == 3, "it serves, and says that it has no stake"
            await asyncio.to_thread(stop, "quorate-node.service", running)


async def test_the_coordinator_unit_runs(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    async with deployed_stage(tmp_path / "stage") as market:
        deployment, home = tmp_path / "deployment.json", tmp_path / "coordinator"
        deployment.write_bytes(canonical.encode(market.deployment))
        where = (
            "--deployment",
            str(deployment),
            "--chain-url",
            market.chain_url,
            "--beacon-url",
            market.beacon_url,
        )
        port = free_port("127.0.0.1")
        listen = f"/ip4/127.0.0.1/tcp/{free_port('127.0.0.1')}"  # another test may use port + 1
        words = ("coordinator", "init", *where, "--port", str(port), "--p2p-listen", listen)
        words = (*words, "--home", str(home))
        await asyncio.to_thread(initialise, tmp_path, *words)
        accounts = [
            json.loads((home / "keys" / f"{name}.json").read_text())["address"]
            for name in ("account", "posting")
        ]
        facts = {"chainUrl": market.chain_url, "deployment": canonical.to_json(market.deployment)}
        await give(
            facts,
            [address if address.startswith("0x") else f"0x{address}" for address in accounts],
            2_000,
        )
        with started("quorate-coordinator.service", "coordinator", tmp_path) as running:
            await asyncio.to_thread(running.hears, b"READY=1")
            url = f"http://127.0.0.1:{port}"
            while (found := await asyncio.to_thread(typed, "coordinator", "health", "--url", url))[
                0
            ] != 0:
                assert running.process.poll() is None and found[0] == 3, (
                    found,
                    running.log.read_text(),
                )
            assert found == (0, f"ready: {url}\n")
            await asyncio.to_thread(stop, "quorate-coordinator.service", running)
