"""Types each `quorate` command of docs/howto/gpu.md, on a machine whose containers reach no GPU.

The driver is a recorded one with four RTX 4090, the container engine is real, and has no toolkit.
The last steps of the guide need a GPU, so here each says what is missing, and nothing is staked.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gpu.recorded_inventories import FakeLibraryProbe, recorded
from support.requirements import absent

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "gpu.md"
QUORATE = str(Path(sys.executable).with_name("quorate"))
SECONDS = 300.0


class Owner:
    """Types commands with a passphrase file, in a home of her own."""

    def __init__(self, folder: Path) -> None:
        (folder / "password").write_text("correct horse\n")
        (folder / "password").chmod(0o600)
        self.folder = folder
        kept = {name: text for name, text in os.environ.items() if not name.startswith("QUORATE_")}
        self.environment = {
            **kept,
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(folder),
            "QUORATE_PASSWORD_FILE": str(folder / "password"),
        }

    def type(self, line: str, status: int) -> str:
        words = line.replace("quorate", QUORATE, 1).split()
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == status, f"{line}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    asked = ["docker", "info", "--format", "{{json .Runtimes}}"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    if "nvidia" in told:
        absent("docker", "this engine has NVIDIA's toolkit")
    FakeLibraryProbe(recorded("four-rtx-4090"), tmp_path)
    somebody = Owner(tmp_path)
    try:
        yield somebody
    finally:
        somebody.type("quorate devnet down", 0)


def commands() -> list[str]:
    """The `quorate` lines of the guide, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"  +#.*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("quorate")]


@pytest.mark.docker
@pytest.mark.cc
def test_without_the_toolkit_each_command_says_so_and_nothing_is_staked(owner: Owner) -> None:
    owner.type("quorate devnet up --detach --providers 3 --executor noop", 0)
    facts = json.loads((owner.folder / "devnet" / "devnet.json").read_text())
    lines = commands()
    told = [
        owner.type(
            line.replace("https://coordinator.example", facts["coordinator"]["url"])
            + " --limits devnet" * line.startswith("quorate node init"),
            status,
        )
        for line, status in zip(lines, (3, 0, 3, 3, 4, 0), strict=True)
    ]
    selftest, init, check, up, status, withdraw = told
    assert "ok  inventory" in selftest and "NO  container" in selftest, selftest
    assert "GPUs: 4 slots of RTX 4090" in init and "needs 400.00 USD of stake" in init, init
    assert "NO  gpu container a container reaches the GPUs of 0 of 4 slots" in check, check
    assert "nvidia-ctk runtime configure" in check and "NO  first job" in check, check
    assert "no GPU is on offer: a container reaches the GPUs of 0 of 4 slots" in up, up
    assert "no provider has run in" in status, status
    assert ": 0.00 USD" in withdraw, withdraw
    assert "not registered yet" in owner.type("quorate node check", 3), "nothing was staked"
