"""A stranger's first hour. Each error names the cause and the next command to type."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_node.status import diagnostics
from support.cli_prompt import typed
from support.http_server import on_loopback

QUORATE = str(Path(sys.executable).with_name("quorate"))
SECONDS = 180  # generous: a command on a machine that is busy with other tests
DEAD = "http://127.0.0.1:1"


@dataclass
class Stranger:
    """A person at a prompt in a folder. The passphrase comes from a file unless a test says
    otherwise.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in (("password", "correct horse\n"), ("wrong", "battery staple\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o600)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("QUORATE_", "PYTHONPATH", "DOCKER_", "XDG_"))
        }
        self.environment = {
            **kept,
            "HOME": str(self.folder),
            "QUORATE_PASSWORD_FILE": str(self.folder / "password"),
        }

    def type(self, line: str, **changed: str) -> tuple[int, str]:
        return typed(*line.split(), folder=self.folder, environment=self._changed(changed))

    def starts(self, line: str) -> tuple[int, str]:
        """As `type`, in a process of its own."""
        done = subprocess.run(
            [QUORATE, *line.split()],
            cwd=self.folder,
            env=self._changed({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done.returncode, done.stdout

    def _changed(self, changed: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in {**self.environment, **changed}.items() if value}

    def fails(self, words: str, *told: str, status: int, **changed: str) -> None:
        code, said = self.type(words, **changed)
        assert code == status, said
        for part in told:
            assert part in said, said


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    somebody = Stranger(tmp_path_factory.mktemp("hour"))
    code, said = somebody.starts("devnet up --detach --providers 3 --executor noop")
    assert code == 0, said
    try:
        yield somebody
    finally:
        somebody.starts("devnet down")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program uses."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


# ---------------------------------------------------------------------------------- before anything


def test_command_without_a_market_names_the_next_command(stranger: Stranger) -> None:
    stranger.fails("offers", "no profile", "quorate init --coordinator URL", status=7)
    stranger.fails(
        "--devnet devnet/devnet.json offers",
        "devnet.json does not exist",
        "quorate devnet up",
        status=7,
    )
    stranger.fails("devnet down", "no devnet is up in devnet", "quorate devnet up", status=4)
    stranger.fails("devnet status", "no devnet is up in devnet", "quorate devnet up", status=4)
    named = {"QUORATE_DEVNET": "elsewhere/devnet.json"}
    stranger.fails("devnet status", "no devnet is up in elsewhere", status=4, **named)
    stranger.fails("node up", "there is no provider in", "quorate node init", status=3)
    stranger.fails("node status", "there is no provider in", "quorate node init", status=4)
    stranger.fails("coordinator up", "coordinator.json", "quorate coordinator init", status=2)
    stranger.fails(
        f"coordinator status --url {DEAD}", "nothing answers", "quorate coordinator up", status=4
    )
    stranger.fails(
        "coordinator init --devnet devnet/devnet.json",
        "No such file",
        "--devnet devnet/devnet.json",
        status=2,
    )


def test_missing_engine_is_named(stranger: Stranger) -> None:
    away = f"unix://{stranger.folder}/no.sock"
    words = (f"{away}: No such file or directory", "systemctl start docker", "--executor bwrap")
    stranger.fails("devnet up --executor docker", *words, status=4, DOCKER_HOST=away)


def test_unknown_executor_is_named(stranger: Stranger) -> None:
    stranger.fails(
        "devnet up --executor dokcer",
        "--executor 'dokcer' is unknown; choose one of auto, docker",
        status=2,
    )


def test_missing_passphrase_and_a_readable_password_file_are_named(stranger: Stranger) -> None:
    for words in (f"init --coordinator {DEAD}", f"node init --coordinator {DEAD}"):
        stranger.fails(
            words,
            "no passphrase",
            "--password-file FILE",
            status=7 if words[0] == "i" else 3,
            QUORATE_PASSWORD_FILE="",
        )
    (stranger.folder / "password").chmod(0o644)
    stranger.fails(
        f"node init --coordinator {DEAD}", "can be read by others", "chmod 600", status=3
    )


@pytest.mark.parametrize(
    "words",
    ["init", "node init --coordinator http://127.0.0.1:1", "devnet up --detach --executor noop"],
)
def test_folder_that_cannot_be_written_is_named(stranger: Stranger, words: str) -> None:
    option = "--dir /proc/nowhere" if words.startswith("devnet") else "--home /proc/nowhere"
    line = f"--home /proc/nowhere {words}" if words == "init" else f"{words} {option}"
    stranger.fails(
        line, "/proc/", "No such file or directory", "--home", status=7 if words == "init" else 4
    )


def test_full_disk_is_named(stranger: Stranger) -> None:
    small = stranger.folder / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=8k none {small} && head -c 8192 /dev/zero > {small}/full; "
        f"exec {QUORATE} node init --home {small}/n"
    )
    isolated = ("unshare", "--user", "--map-root-user", "--mount")
    words = [*isolated, "sh", "-c", f"{script} --coordinator {DEAD}"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*isolated, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("unshare: no mount namespace can be made here")
    done = subprocess.run(
        words,
        env=stranger.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "the disk is full" in done.stderr and "df -h" in done.stderr
    assert "Traceback" not in done.stderr


def test_coordinator_that_is_down_is_named(stranger: Stranger) -> None:
    assert stranger.type(f"init --coordinator {DEAD} --limits devnet")[0] == 0
    stranger.fails("offers", DEAD, "does not answer", "ask its operator", status=4)
    assert stranger.type(f"node init --coordinator {DEAD} --limits devnet")[0] == 0
    stranger.fails(
        "node check", f"{DEAD}", "does not answer", "fix: start it, or name another", status=3
    )
    stranger.fails(
        "node up --executor process",
        DEAD,
        "does not answer",
        "or name another: quorate node init --home",
        status=4,
    )


def test_image_tag_is_valid_and_becomes_a_digest_later(stranger: Stranger) -> None:
    (stranger.folder / "job.yaml").write_text(
        "image: python:3.12\nmax_price: 1\ncommand: [python3]\n"
    )
    code, said = stranger.type("validate -f job.yaml")
    assert code == 0 and "resolves it to a digest" in said and "job.yaml: valid" in said
    code, said = stranger.type("validate -f job.yaml --json")
    assert code == 0 and json.loads(said.splitlines()[-1])["specCid"] is None
    (stranger.folder / "job.yaml").write_text(
        "image: python:3.12\nmax_price: 1\ncommand: [python3]\nresources: {cpu: none}\n"
    )
    stranger.fails("validate -f job.yaml", "resources", status=2)


def test_missing_image_is_named(stranger: Stranger) -> None:
    stranger.fails("run hello.tar --max-price 5 -- true", "no profile", "quorate init", status=7)
    (stranger.folder / "job.yaml").write_text(
        "image: hello.tar\nmax_price: 1\ncommand: [python3]\n"
    )
    stranger.fails(
        "validate -f job.yaml",
        "hello.tar does not exist",
        "quorate image build --python -o hello.tar",
        status=2,
    )
    stranger.fails("validate -f nothing.yaml", "nothing.yaml: No such file", status=2)


# --------------------------------------------------------------------------------- with a devnet up


def test_second_devnet_in_a_folder_is_refused(market: Stranger) -> None:
    market.fails(
        "devnet up --detach --executor noop",
        "another devnet runs",
        "quorate devnet down --dir",
        status=2,
    )


def test_owner_without_money_and_a_wrong_passphrase_are_named(market: Stranger) -> None:
    made = market.type("node init --devnet devnet/devnet.json --home owner --executor process")
    assert made[0] == 0 and "quorate devnet fund owner" in made[1], made[1]
    market.fails(
        "node check --home owner",
        "lacks 100.00 USD of stake",
        "send 100.00 qUSD (token 0x",
        "quorate devnet fund",
        "clock",
        status=3,
    )
    wrong = str(market.folder / "wrong")
    market.fails(
        "node up --home owner",
        "the passphrase does not open",
        "--password-file FILE",
        status=3,
        QUORATE_PASSWORD_FILE=wrong,
    )
    market.fails(
        "node init --home other --devnet password",
        "is no devnet.json",
        "quorate devnet up",
        status=3,
    )


def test_port_that_is_taken_is_named(market: Stranger, taken: int) -> None:
    market.type("node init --devnet devnet/devnet.json --home busy --executor process")
    market.fails(
        f"node up --home busy --port {taken}",
        f"port {taken}",
        "cannot be used",
        "choose another with --port",
        status=4,
    )


def test_operator_without_money_and_the_wrong_chain_are_named(market: Stranger) -> None:
    facts = json.loads((market.folder / "devnet/devnet.json").read_text())
    market.type("coordinator init --devnet devnet/devnet.json --home operator")
    market.fails(
        "coordinator up --home operator --port 0",
        "needs a bond of 1000",
        "send 1000.00 qUSD (token 0x",
        "ETH for gas to 0x",
        "quorate devnet fund",
        status=3,
    )
    for name, changed, told in (
        (
            "moved",
            {"chainId": 1},
            ("serves chain 31337, the contracts are on chain 1", "--chain-url"),
        ),
        (
            "gone",
            {"stakes": "0x" + "99" * 20},
            ("no Stakes contract at 0x9999", "init with its deployment"),
        ),
    ):
        (market.folder / f"{name}.json").write_text(
            json.dumps({**facts, "deployment": {**facts["deployment"], **changed}})
        )
        market.type(f"coordinator init --devnet {name}.json --home {name}")
        market.fails(f"coordinator up --home {name} --port 0", *told, status=3)
    market.type(f"coordinator init --devnet devnet/devnet.json --chain-url {DEAD} --home away")
    market.fails("coordinator up --home away --port 0", DEAD, "--chain-url URL", status=4)


def test_client_without_money_is_named(market: Stranger) -> None:
    url = json.loads((market.folder / "devnet/devnet.json").read_text())["coordinator"]["url"]
    assert market.type(f"--home client init --coordinator {url} --limits devnet")[0] == 0
    market.fails(
        "--home client deposit 25", "cannot pay for gas", "quorate devnet fund client", status=3
    )
    image = "docker.io/library/python@sha256:" + "ab" * 32
    market.fails(
        f"--home client run {image} --max-price 5 --yes -- python3",
        "your tab for this coordinator is empty",
        "worst case of 3.825 USD must be available, and 0.00 USD is",
        "it will probably cost about 0.12",
        "quorate --home client deposit 3.825",
        status=3,
    )
    assert market.type("devnet fund client")[0] == 0
    market.fails(
        "--home client deposit 9999999",
        "2000.00 of the 9999999.00 USD",
        "send 9997999.00 qUSD (token 0x",
        status=3,
    )
    assert market.type("--home client deposit 25")[0] == 0
    code, told = market.type("--home client balance")
    assert code == 0 and "tab        25.00 USD for" in told and "qUSD (token 0x" in told, told
    money_comes_out_without_a_coordinator(market)
    market.fails(
        f"--home client run {image} --max-price 0.01 --yes -- python3",
        "raise max_price",
        "quorate offers",
        status=3,
    )


def money_comes_out_without_a_coordinator(market: Stranger) -> None:
    """Withdraws while the coordinator is away, so the tab closes; then also while the chain is."""
    settings = market.folder / "client/client.json"
    kept = settings.read_text()
    tree = json.loads(kept) | {"coordinator": DEAD}
    settings.write_text(json.dumps(tree))
    for _ in range(2):
        code, told = market.type("--home client withdraw 5")
        assert code == 0, told
        assert (
            "your tab closes: 5.00 USD" in told and "then `quorate --home client withdraw`" in told
        )
        assert "open orders count as promised" in told
    code, told = market.type("--home client balance")
    assert code == 0 and "25.00 USD for coordinator" in told and "; it closes " in told, told
    for command in ("balance", "withdraw"):
        market.fails(
            f"--home client {command} --chain-url {DEAD}", DEAD, "--chain-url URL", status=4
        )
    market.fails("--home client withdraw 7", "5.00 USD to 0x", "is under way", status=2)
    settings.write_text(kept)


# ---------------------------------------------------------------------------------------- the clock


class Skewed:
    """A clock that is wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return 1_800_000_000.0 + self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a check must not sleep")


@pytest.mark.parametrize(("skew", "is_good"), [(0, True), (3600, False), (-3600, False)])
async def test_clock_that_is_wrong_is_named(skew: int, is_good: bool) -> None:
    async def health(request: web.Request) -> web.Response:
        return web.json_response(
            {"ok": True}, headers={"Date": formatdate(1_800_000_000, usegmt=True)}
        )

    app = web.Application()
    app.router.add_get("/v1/health", health)
    async with on_loopback(app) as url, aiohttp.ClientSession() as session:
        found = await diagnostics.check_clock(session, url, Skewed(skew))
    assert found.is_good is is_good and found.fix == "timedatectl set-ntp true"
    assert is_good or f"{abs(skew)} s {'ahead of' if skew > 0 else 'behind'}" in found.text
