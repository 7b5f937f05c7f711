"""The first day of a client, an owner and an operator, typed in a pseudo-terminal.

Each starts in a clean clone, knows only the README and the guides, and ends with money in a wallet.
The client and the owner share one devnet. The owner waits for her stake at the end, and the chain's
clock is set forward where it runs on anvil.
"""

import json
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from quorate_contracts.generated.token import Token
from quorate_devnet.chain.anvil_process import anvil_path
from quorate_protocol.units import Address
from support.chain.empty_chain import ask, empty_chain
from support.changing_folders import files_below
from support.prometheus_server import prometheus_server
from support.terminal import Terminal, terminal

ROOT = Path(__file__).resolve().parents[2]
PASSPHRASE = "correct horse"
SUM = shlex.quote("print(sum(range(10_000_000)))")
LOOK_SECONDS = 150  # longer than a devnet holds pay and takes to a payroll
CHAIN = "--chain anvil" if anvil_path() else ""
ACTIVATE = ". .venv/bin/activate"
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
WAIT_SECONDS = 200  # longer than any wait of a devnet for money
LEAD_MOST = 20_000_000  # millionths of a USD that vouchers may run ahead of charges here
OpenWindow = Callable[[], Terminal]
People = Callable[[str], OpenWindow]
Finish = Callable[[], None]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the root of a clean clone, in which `.venv` is made already."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("venv: the scripts begin with `. .venv/bin/activate`")
    folder = tmp_path_factory.mktemp("clone")
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


@pytest.fixture(scope="module")
def people(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """Returns a function from a name to a function that opens one more window of this person.

    Each person has a home folder of her own, and `.venv` is active in each window.
    """
    with ExitStack() as stack:

        def person(name: str) -> OpenWindow:
            home = str(tmp_path_factory.mktemp(name))

            def opened() -> Terminal:
                window = stack.enter_context(terminal(clone, {"HOME": home}))
                window.type(ACTIVATE)
                return window

            return opened

        yield person


@pytest.fixture(scope="module")
def waiting() -> list[Finish]:
    """Returns what people do once their money may leave the contracts."""
    return []


@pytest.fixture(scope="module")
def devnet(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns the devnet.json of a market with three providers, which client and owner share."""
    home = {"HOME": str(tmp_path_factory.mktemp("somebody"))}
    with terminal(clone, home) as window:
        window.type(ACTIVATE)
        window.type(f"quorate devnet up --detach --providers 3 --executor process {CHAIN}")
        try:
            yield clone / "devnet" / "devnet.json"
        finally:
            window.type("quorate devnet down")


def test_client_from_init_to_a_result_of_her_script(
    devnet: Path, clone: Path, people: People, waiting: list[Finish]
) -> None:
    """She runs her own script with a package, and asks for all that it did not cost."""
    facts = json.loads(devnet.read_text())
    window, secret = people("client")(), {"Passphrase of": PASSPHRASE}
    told = window.type(
        f"quorate init --limits devnet --coordinator {facts['coordinator']['url']}",
        {"New passphrase": PASSPHRASE, "Repeat": PASSPHRASE},
    )
    account, home = shown(told, "account"), shown(told, "profile")
    told = window.type("quorate deposit 25", secret, status=3)
    assert "send 25.00 qUSD (token 0x" in told and "on a devnet (chain 31337)" in told, told
    window.type(f"quorate devnet fund {home}")
    told = window.type("quorate deposit 25", secret)
    assert "25.00 USD deposited" in told, told
    before = tokens_of(facts, account)

    write_own_script(clone)
    window.type("quorate image build --python -o hello.tar")
    told = window.type(
        "quorate run hello.tar --max-price 5 --file train.py -r requirements.txt "
        "-o model -- /outputs/model.json",
        {**secret, "Submit for about": "y"},
    )
    assert "accepted (quorum-2): 2 providers agree" in told, told
    assert json.loads((clone / "model" / "model.json").read_text()) == {"weights": [2, 4, 6]}
    charged = round(float(shown(told, "charged")) * 1_000_000)
    assert 0 < charged < 1_000_000
    fetches_on_a_full_disk(window, told)

    def finish() -> None:
        told = window.type("quorate withdraw", secret)
        assert f"withdrawn to {account}" in told, told
        # What its vouchers ran ahead stays with the coordinator (4.75)
        left = before + 25_000_000 - charged - tokens_of(facts, account)
        assert 0 <= left < LEAD_MOST, left
        assert float(shown(window.type("quorate balance"), "tab")) * 1_000_000 < LEAD_MOST

    waiting.append(finish)


def fetches_on_a_full_disk(window: Terminal, told: str) -> None:
    """Fetches the run that `told` names onto a disk of 4 KiB, and then onto one with room."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        return  # no mount namespace can be made here
    window.type("mkdir -p full")
    found = re.search(r"run (0x[0-9a-f]{12}) \(", told)
    assert found, told
    get = f"quorate get {found[1]} -o full/result"
    small = f"mount -t tmpfs -o size=4k none full && {get}"
    told = window.type(f"{shlex.join(NAMESPACE)} sh -c {shlex.quote(small)}", status=4)
    assert "full/result: the disk is full" in told and "then: quorate get 0x" in told, told
    assert "accepted" in window.type(get)


def test_homes_and_databases_are_for_their_owner_alone(devnet: Path) -> None:
    homes = [path for path in devnet.parent.iterdir() if (path / "keys").is_dir()]
    found = (path for home in homes for path in files_below(home))
    files = [path for path in found if ".sqlite" in path.name]
    assert len(homes) >= 5 and len(files) > 10
    opened = [path for path in (devnet.parent, *homes, *files) if is_for_others(path)]
    assert opened == []


def is_for_others(path: Path) -> bool:
    """Drafts come and go while daemons run."""
    try:
        return bool(path.stat().st_mode & 0o077)
    except FileNotFoundError:
        return False


def write_own_script(folder: Path) -> None:
    """Writes train.py, and requirements.txt with a package that no index has."""
    (folder / "train.py").write_text(
        "import json, sys, doubling\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    json.dump({'weights': doubling.doubled([1, 2, 3])}, file)\n"
    )
    metadata = "Metadata-Version: 2.1\nName: doubling\nVersion: 1.0\n"
    with zipfile.ZipFile(folder / "doubling-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("doubling.py", "def doubled(items):\n    return [2 * i for i in items]\n")
        wheel.writestr("doubling-1.0.dist-info/METADATA", metadata)
        wheel.writestr(
            "doubling-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("doubling-1.0.dist-info/RECORD", "")
    (folder / "requirements.txt").write_text("./doubling-1.0-py3-none-any.whl\n")


def shown(told: str, name: str) -> str:
    """Returns the word after a name at the beginning of a line."""
    found = re.search(rf"^{name} +(\S+)", told, re.MULTILINE)
    assert found, told
    return found[1]


def tokens_of(facts: dict[str, Any], account: str) -> int:
    """Returns the test dollars in a wallet, in millionths, as the chain says."""
    query = Token(Address(bytes.fromhex(facts["deployment"]["token"][2:]))).balance_of(
        Address(bytes.fromhex(account[2:]))
    )
    call = {"to": f"0x{query.to.hex()}", "data": f"0x{query.data.hex()}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
    request = urllib.request.Request(
        facts["chainUrl"], json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(query.decode(bytes.fromhex(json.load(answer)["result"][2:])))


def test_owner_from_init_to_earnings(devnet: Path, people: People, waiting: list[Finish]) -> None:
    """She is paid for a job, offers less, and asks for her stake and pay."""
    new_window = people("owner")
    window, daemon = new_window(), new_window()
    secret = {"Passphrase of": PASSPHRASE, "Again": PASSPHRASE}
    told = window.type(
        "quorate node init --devnet devnet/devnet.json --executor process --port 0 --price 3 "
        "--slots 2",
        secret,
    )
    home = re.search(r"^Provider made in (\S+)$", told, re.MULTILINE)
    assert home and "needs 200.00 USD of stake" in told, told
    window.type(f"quorate devnet fund {home[1]}")
    told = daemon.type("quorate node up", {**secret, "[y/N]": "n"}, status=3)
    assert "Stake 200.00 USD of 0x" in told and "nothing was staked" in told, told
    daemon.start("quorate node up", "on offer: waiting for jobs", {**secret, "[y/N]": "y"})
    window.type("quorate node price 2.50")
    window.type("quorate node pause")
    assert "not on offer: paused" in window.type("quorate node status")
    window.type("quorate node resume")
    if not (devnet.parents[1] / "hello.tar").exists():
        window.type("quorate image build --python -o hello.tar")
    window.type("quorate --devnet devnet/devnet.json apply -y -f examples/hello.yaml")
    daemon.until(" paid: 0.0")
    told = window.type("quorate node status")
    assert "on offer" in told and "at 2.50 USD per slot-hour" in told and "1 paid" in told, told

    told = window.type("quorate node init --slots 1", secret)
    assert "100.00 USD of stake" in told, told
    daemon.kill()
    daemon.start("quorate node up", "stake: sent close_slot", secret)
    _until(lambda: window.type("quorate node status"), lambda told: "1 slot open, 1 closed" in told)

    window.bound_seconds = 400.0  # stake comes back after 180 seconds
    window.start("quorate node leave --wait", "waits: the stake", secret)
    window.kill()

    def finish() -> None:
        _until(
            lambda: window.type("quorate node withdraw", secret),
            lambda told: "payroll" not in told and "held by" not in told,
        )
        _let_time_pass(devnet)
        told = window.type("quorate node leave --wait", secret)
        assert "left: no stake is on chain, and no pay is owed" in told, told
        wallet = re.search(r"^wallet 0x[0-9a-f]{40}: (2000\.0\d+) USD$", told, re.MULTILINE)
        assert wallet, f"all of the stake, and the pay of one job:\n{told}"
        friend = "0x" + "12" * 20
        told = window.type(f"quorate node withdraw {wallet[1]} --to {friend}", secret)
        assert f"sent {wallet[1]} USD to {friend}" in told and ": 0.00 USD" in told, told
        assert "stopped" in daemon.press("c")

    waiting.append(finish)


@pytest.mark.promtool
def test_dashboard_and_alerts_read_a_running_market(devnet: Path, tmp_path: Path) -> None:
    """Each expression of the dashboard finds series, and each selector of the alerts does."""
    target = json.loads(devnet.read_text())["coordinator"]["url"].removeprefix("http://")
    docker = ROOT / "docker"
    alerts = docker / "prometheus" / "alerts.yml"
    board = json.loads((docker / "grafana" / "coordinator.json").read_text())
    shown = {item["expr"] for panel in board["panels"] for item in panel["targets"]}
    rules = "\n".join(re.findall(r"expr: (?:>-)?(.*?)\n +(?:for|labels)", alerts.read_text(), re.S))
    selectors = set(re.findall(r"(?:quorate_\w+|up)(?:{[^}]*})?", rules))
    assert len(shown) > 15 and len(selectors) > 10
    selectors.remove("quorate_backup_lag_seconds")  # only with a second place
    with prometheus_server(tmp_path, target, alerts) as server:
        server.wait_for_scrapes(4)
        empty = [
            expression for expression in sorted(shown | selectors) if not server.finds(expression)
        ]
        assert not empty
        firing = server.query('ALERTS{alertstate="firing"}')
        assert not [item["metric"] for item in firing], "a healthy market raises nothing"


def test_the_client_has_her_money_in_her_wallet(waiting: list[Finish]) -> None:
    waiting.pop(0)()


def test_the_owner_has_his_money_in_his_wallet(waiting: list[Finish]) -> None:
    waiting.pop()()


def _let_time_pass(devnet: Path) -> None:
    if CHAIN:
        url = json.loads(devnet.read_text())["chainUrl"]
        ask(url, "evm_increaseTime", WAIT_SECONDS)
        ask(url, "evm_mine")


@pytest.mark.anvil
def test_operator_from_an_empty_chain_to_fees_in_a_wallet(people: People, tmp_path: Path) -> None:
    new_window = people("operator")
    home, wallet = tmp_path / "coordinator", "0x" + "ab" * 20
    secret = {"Passphrase of": PASSPHRASE, "Again": PASSPHRASE}
    secret |= {"[y/N]": "y"}
    with empty_chain(tmp_path) as chain:
        window, market = new_window(), new_window()
        paid = f"--chain-url {chain.chain_url} --key {chain.key}"
        told = window.type(
            f"quorate chain deploy {paid} --limits devnet --test-token --beacon {chain.beacon_url}",
            secret,
        )
        following = re.search(r"^Next: (quorate coordinator init .*)$", told, re.MULTILINE)
        assert following and "7 contracts" in told, told
        port = _port_with_the_next()
        window.type(f"{following[1]} --port {port} --home {home}", secret)
        window.type(f"quorate chain fund {home} {paid} --coins 1")
        market.start(f"quorate coordinator up --home {home}", "serves at", secret)
        window.type(f"quorate coordinator deposit 500 --home {home}", secret)
        window.type(f"quorate coordinator limit --payroll 40 --locks 40 --home {home}", secret)
        owners = _first_paid_job(new_window(), tmp_path, f"http://127.0.0.1:{port}", paid)

        told = window.type(f"quorate coordinator retire --home {home}", secret)
        assert "no new orders" in told and "1000.00 USD can be taken on" in told, told
        told = _until(
            lambda: window.type(f"quorate coordinator status --home {home}"),
            lambda told: (
                "0.00 USD waits for a payroll, 0.00 USD is held" in told and _capital(told) > 500
            ),  # the client's voucher is redeemed
        )
        assert "1 accepted" in told and "retiring" in told, told
        owners.type("kill $(jobs -p); wait")
        market.press("c")
        ask(chain.chain_url, "evm_increaseTime", 200)
        told = window.type(f"quorate coordinator retire --home {home} --wait", secret)
        assert "1000.00 USD of bond came back" in told, told
        told = window.type(
            f"quorate coordinator withdraw --home {home} --to {wallet} --everything", secret
        )
        assert re.search(r"^sent +40[012]\d\.\d+ USD and 1\.9\d+ ", told, re.MULTILINE), told
        assert int(str(ask(chain.chain_url, "eth_getBalance", wallet, "latest")), 16) > 10**18


def _capital(told: str) -> float:
    """Returns what a coordinator's status says is in Escrow, with its guarantees, in USD."""
    found = re.search(r"^capital +(\S+) USD in Escrow, (\S+) locked", told, re.MULTILINE)
    assert found, told
    return float(found[1]) + float(found[2])


def _port_with_the_next() -> int:
    """Returns a port that is free, and whose next one is free too: libp2p listens there.

    Both are below the ports that the kernel gives to outgoing connections, so none takes them
    before the coordinator is up.
    """
    for port in random.sample(range(20_000, 32_000, 2), 64):
        with ExitStack() as both, suppress(OSError):
            for number in (port, port + 1):
                both.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
    raise AssertionError("no two free ports between 20000 and 32000")


def _first_paid_job(window: Terminal, folder: Path, url: str, paid: str) -> Terminal:
    """Three owners and a client join, and a job is paid for. The owners' daemons run in the window
    that is returned.
    """
    (folder / "word").touch(mode=0o600)
    (folder / "word").write_text(PASSPHRASE)
    window.type(f"export QUORATE_PASSWORD_FILE={folder / 'word'} IN={folder}")
    joining = f"--coordinator {url} --limits devnet --deployment deployment.json"
    window.type(
        "for number in 1 2 3; do quorate node init --executor process --slots 1 --price 3.60 "
        f"{joining} --host 127.0.9$number.1 --home $IN/provider-$number & done; wait"
    )
    window.type(f"quorate --home $IN/client init {joining}")
    window.type(f"quorate chain fund $IN/provider-* $IN/client {paid}")
    window.type(
        "for number in 1 2 3; do quorate node up --yes --home $IN/provider-$number "
        "> $IN/log-$number 2>&1 & done"
    )
    window.type("quorate --home $IN/client deposit 100")
    window.type("test -e hello.tar || quorate image build --python -o hello.tar")
    _until(
        lambda: window.type("quorate coordinator status --home $IN/coordinator"),
        lambda told: "3 connected, 3 on offer" in told,
    )
    # Stake counts some blocks after an offer is shown; an order before that is refused.
    order = f"quorate --home $IN/client run hello.tar --yes --max-price 5 -- python3 -c {SUM}"
    told = window.type(f"for try in $(seq 20); do {order} && break; sleep 1; done")
    assert "accepted (quorum-2)" in told, told
    return window


def _until(look: Callable[[], str], is_there: Callable[[str], object]) -> str:
    """Types the same command until it shows what is awaited, however fast the machine is."""
    limit = time.monotonic() + LOOK_SECONDS
    while not is_there(told := look()):
        assert time.monotonic() < limit, told
        time.sleep(0.2)
    return told
