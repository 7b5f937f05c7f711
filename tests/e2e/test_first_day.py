"""The first day of a client, an owner and an operator, typed in a pseudo-terminal.

Each starts in a clean clone, knows only the README and the guides, and ends with money in a wallet.
The client and the owner share one devnet.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

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


def test_client_from_init_to_a_verified_result(devnet: Path, new_window: OpenWindow) -> None:
    window = new_window()
    url = re.search(r'"url": ?"(http://[^"]+)"', devnet.read_text())
    assert url, devnet.read_text()
    new = {"New passphrase": PASSPHRASE, "Repeat": PASSPHRASE}
    secret = {"Passphrase of": PASSPHRASE}
    told = window.type(f"quorate init --limits devnet --coordinator {url[1]}", new)
    home = re.search(r"^profile +(\S+)$", told, re.MULTILINE)
    assert home, told
    window.type(f"quorate devnet fund {home[1]}")
    told = window.type("quorate deposit 25", secret)
    assert "25.00 USD deposited" in told, told
    window.type("quorate image build --python -o hello.tar")
    told = window.type("quorate apply -f examples/hello.yaml", {**secret, "Submit?": "y"})
    assert "accepted (quorum-2): 2 providers agree" in told, told
