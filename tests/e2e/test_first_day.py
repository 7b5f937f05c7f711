"""The first day of a client, an owner and an operator, typed in a pseudo-terminal.

Each starts in a clean clone, knows only the README and the guides, and ends with money in a wallet.
The client and the owner share one devnet.
"""

import json
import re
import shutil
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from quorate_contracts.bindings.token import Token
from quorate_protocol.units import Address
from support.terminal import Terminal, terminal

ROOT = Path(__file__).resolve().parents[2]
PASSPHRASE = "correct horse"
ACTIVATE = ". .venv/bin/activate"
OpenWindow = Callable[[], Terminal]


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


@pytest.fixture
def new_window(clone: Path, tmp_path: Path) -> Iterator[OpenWindow]:
    """Returns a function that opens one more terminal window of one person in the clone.

    The person has a home folder of her own, and `.venv` is active in each window.
    """
    with ExitStack() as stack:

        def opened() -> Terminal:
            window = stack.enter_context(terminal(clone, {"HOME": str(tmp_path)}))
            window.type(ACTIVATE)
            return window

        yield opened


@pytest.fixture(scope="module")
def devnet(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns the devnet.json of a market with three providers, which client and owner share."""
    home = {"HOME": str(tmp_path_factory.mktemp("somebody"))}
    with terminal(clone, home) as window:
        window.type(ACTIVATE)
        window.type("quorate devnet up --detach --providers 3 --executor process")
        try:
            yield clone / "devnet" / "devnet.json"
        finally:
            window.type("quorate devnet down")


def test_client_from_init_to_her_money_back(
    devnet: Path, clone: Path, new_window: OpenWindow
) -> None:
    """She runs her own script with a package, and takes back all that it did not cost."""
    facts = json.loads(devnet.read_text())
    window, secret = new_window(), {"Passphrase of": PASSPHRASE}
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

    window.start("quorate withdraw --wait", "it can be taken out from", secret)
    window.kill()
    told = window.type("quorate withdraw 30", secret, status=2)
    assert "is under way" in told, told
    told = window.type("quorate withdraw --wait", secret)
    assert f"withdrawn to {account}" in told, told
    assert tokens_of(facts, account) == before + 25_000_000 - charged
    assert "deposited  0.00 USD" in window.type("quorate balance")


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
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(query.decode(bytes.fromhex(json.load(answer)["result"][2:])))


def test_owner_from_init_to_earnings_and_stake_in_her_wallet(
    devnet: Path, new_window: OpenWindow
) -> None:
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
    daemon.start("quorate node up", "on offer: waiting for jobs", secret)
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
    assert "1 slots open, 1 closed" in window.type("quorate node status")

    window.bound_seconds = 400.0  # stake comes back after 180 seconds
    told = window.type("quorate node leave --wait", secret)
    assert "left: no stake is on chain and no pay is owed" in told, told
    wallet = re.search(r"^wallet 0x[0-9a-f]{40}: (2000\.0000\d+) USD$", told, re.MULTILINE)
    assert wallet, f"all of the stake, and the pay of one job:\n{told}"
    friend = "0x" + "12" * 20
    told = window.type(f"quorate node withdraw {wallet[1]} --to {friend}", secret)
    assert f"sent {wallet[1]} USD to {friend}" in told and ": 0.00 USD" in told, told
    assert "stopped" in daemon.press("c")
