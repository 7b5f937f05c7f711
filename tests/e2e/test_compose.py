"""Tests the market of docker/compose.yaml in its own images.

It comes up healthy, runs a job to a receipt that can be checked, and stops. `.ci/make-images`
builds the images beforehand. Otherwise the first test builds them and takes longer.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUORATE = str(Path(sys.executable).parent / "quorate")
COMMAND_SECONDS = 600
PROJECT = f"quorate-test-{os.getpid()}"
NET = f"10.{100 + os.getpid() % 100}"
IMAGES = ("node", "coordinator", "devnet")

pytestmark = [pytest.mark.docker, pytest.mark.compose, pytest.mark.timeout(1500)]


class Compose:
    """Runs `docker compose` on our project alone."""

    def __init__(self, work: Path) -> None:
        images = {f"QUORATE_{name.upper()}_IMAGE": f"quorate-{name}:ci" for name in IMAGES}
        ports = dict.fromkeys(("QUORATE_CHAIN_PORT", "QUORATE_BEACON_PORT", "QUORATE_PORT"), "")
        self._environment = {
            **os.environ,
            **images,
            **ports,
            "QUORATE_NET": NET,
            "QUORATE_WORK": str(work),
        }
        self.work = work  # the folder that the client sees as /work

    def __call__(
        self, *words: str, good: tuple[int, ...] = (0,), seconds: float = COMMAND_SECONDS
    ) -> str:
        """Returns what the command prints. Fails with its output if the exit status is not
        `good`.
        """
        command = [
            "docker",
            "compose",
            "--file",
            str(ROOT / "docker" / "compose.yaml"),
            "--project-name",
            PROJECT,
            *words,
        ]
        done = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode in good, (
            f"{words}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def client(self, *words: str) -> str:
        """Runs the command line in its own container."""
        try:
            return self("run", "--rm", "--no-TTY", "--no-deps", "client", *words)
        except BaseException:
            self.show()
            raise

    def show(self) -> None:
        print(self("ps", "--all"), self("logs", "--tail", "60", "--no-color"), sep="\n")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    work = tmp_path_factory.mktemp("work")
    work.parent.chmod(0o755)
    work.chmod(0o755)
    built = subprocess.run(
        [ROOT / ".ci" / "make-images"], capture_output=True, text=True, timeout=1200, check=False
    )
    assert built.returncode == 0, built.stderr
    compose = Compose(work)
    try:
        compose("up", "--detach", "--wait", "--no-build", "--quiet-pull")
        yield compose
    except BaseException:
        compose.show()
        raise
    finally:
        compose("down", "--volumes", "--timeout", "10")


def test_a_job_runs_to_a_verified_receipt(market: Compose, tmp_path: Path) -> None:
    work = market.work
    subprocess.run(
        [QUORATE, "image", "build", "--python", "-o", str(work / "hello.tar")],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (work / "hello.tar").chmod(0o644)
    market.client("deposit", "100")
    told = market.client(
        "run", "hello.tar", "--max-price", "5", "--json", "--", "python3", "-c", "print(6 * 7)"
    )
    outcome = json.loads(told.splitlines()[-1])
    assert outcome["outcome"] == "accepted", told
    receipt = tmp_path / "receipt.json"
    receipt.write_text(
        market(
            "run",
            "--rm",
            "--no-TTY",
            "--no-deps",
            "--entrypoint",
            "cat",
            "client",
            outcome["receipt"],
        )
    )
    checked = json.loads(
        subprocess.run(
            [QUORATE, "verify", str(receipt), "--json"], check=True, capture_output=True, timeout=60
        ).stdout
    )
    assert checked["valid"] is True and checked["checks"] > 20


def containers(market: Compose) -> dict[str, dict[str, object]]:
    lines = market("ps", "--all", "--format", "json").splitlines()
    return {item["Service"]: item for item in map(json.loads, lines)}


def test_all_services_are_healthy_and_unprivileged(market: Compose) -> None:
    found = containers(market)
    serving = {"chain", "beacon", "coordinator", "provider-a", "provider-b", "provider-c"}
    assert {name for name, item in found.items() if item["Health"] == "healthy"} == serving
    for name in serving:
        text = subprocess.run(
            ["docker", "inspect", str(found[name]["ID"])],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        host, config = (json.loads(text)[0][key] for key in ("HostConfig", "Config"))
        assert (
            host["ReadonlyRootfs"]
            and host["CapDrop"] == ["ALL"]
            and "no-new-privileges:true" in host["SecurityOpt"]
        )
        assert config["User"] == "10001:10001"
        assert all(
            binding["HostIp"] == "127.0.0.1"
            for bindings in (host["PortBindings"] or {}).values()
            for binding in bindings
        )
        secrets = [
            word
            for word in config["Env"]
            if "PASS" in word and not word.startswith("QUORATE_PASSWORD_FILE=")
        ]
        assert not secrets, "a passphrase in the environment is in every inspection"


def test_a_second_start_keeps_the_market_and_its_metrics_are_reachable(market: Compose) -> None:
    market("up", "--detach", "--wait", "--no-build", "--quiet-pull")
    assert containers(market)["setup"]["ExitCode"] == 0
    place = market("port", "coordinator", "7700").strip()
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=60) as answer:
        told = answer.read().decode()
    assert 'quorate_orders_total{ending="accepted"} 1.0' in told


def test_a_provider_stops_cleanly_and_its_health_names_the_problem(market: Compose) -> None:
    market("stop", "provider-c")
    assert containers(market)["provider-c"]["ExitCode"] == 0, "not killed"
    market("stop", "chain")
    limit = time.monotonic() + 300
    while "chain: " not in (
        told := market("exec", "--no-TTY", "provider-a", "quorate", "node", "health", good=(0, 3))
    ):
        assert time.monotonic() < limit, told
        time.sleep(1)
    assert "look at the chain node" in told
