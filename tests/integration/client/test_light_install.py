"""The client alone: without extras the distribution works in an environment that has only its
dependencies, and `import quorate` stays light.
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quorate_protocol.codec import canonical
from quorate_protocol.messages import receipt
from support.markets.scripted_market import Market, Party

ROOT = Path(__file__).parents[3]
HEAVY = ("docker", "sqlalchemy", "aiosqlite", "numpy", "eth_tester", "eth", "libp2p", "vyper")
LAZY = ("web3", "eth_account", "eth_abi")  # installed, and imported only when the chain is called
IMPORT_SECONDS_MAX = 0.5

# Run three times; the fastest counts, and the processor's time, as other programs share the
# machine.
PROGRAM = f"""
import importlib.util, json, sys, time
started = time.process_time()
import quorate
seconds = time.process_time() - started
for name in quorate.__all__:
    getattr(quorate, name)  # loaded at first use: all that a client names works without extras
print(json.dumps({{
    "seconds": seconds,
    "file": quorate.__file__,
    "installed": [name for name in {HEAVY!r} if importlib.util.find_spec(name)],
    "loaded": [name for name in {HEAVY + LAZY!r} if name in sys.modules],
}}))
"""


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the distribution and no extras.

    pip builds and installs the distribution. Its dependencies are linked from this environment,
    because pip would take most of a minute to fetch and unpack them again.
    """
    folder = tmp_path_factory.mktemp("light")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", folder=folder)
    interpreter = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", interpreter, "install"]
    options = ("--quiet", "--no-input", "--no-compile", "--no-deps", "--disable-pip-version-check")
    run(*pip, *options, ROOT, folder=folder)
    (packages,) = (folder / "env" / "lib").glob("python3.*/site-packages")
    (installed,) = metadata.distributions(name="quorate", path=[str(packages)])
    for name in requirements_of(installed, set()) - {"quorate"}:
        link(metadata.distribution(name), packages)
    return interpreter


def requirements_of(distribution: metadata.Distribution, extras: set[str]) -> set[str]:
    """Returns the names of all distributions that pip would install for this one, itself included.

    Fails if this environment lacks one, or has it at a version that is not allowed.
    """
    names: set[str] = set()
    waiting = [(distribution, frozenset(extras))]
    seen = {(distribution.name, frozenset(extras))}
    while waiting:
        each, chosen = waiting.pop()
        names.add(canonicalize_name(each.name))
        for requirement in map(Requirement, each.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
                continue
            needed = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(needed.version, prereleases=True), requirement
            entry = (needed.name, frozenset(requirement.extras))
            if entry not in seen:
                seen.add(entry)
                waiting.append((needed, entry[1]))
    return names


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Links the modules and metadata of an installed distribution into another environment."""
    top = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for name in top:
        if not (packages / name).exists():
            (packages / name).symlink_to(Path(str(distribution.locate_file(name))))


@pytest.mark.index
def test_import_without_extras_is_light(python: Path, tmp_path: Path) -> None:
    runs = [json.loads(run(python, "-c", PROGRAM, folder=tmp_path)) for _ in range(3)]
    assert Path(runs[0]["file"]).is_relative_to(python.parents[1])
    assert runs[0]["installed"] == []
    assert runs[0]["loaded"] == []
    assert min(each["seconds"] for each in runs) <= IMPORT_SECONDS_MAX


@pytest.mark.index
def test_command_line_works_without_extras(python: Path, tmp_path: Path) -> None:
    quorate = python.parent / "quorate"
    assert "validate" in run(quorate, "--help", folder=tmp_path)
    assert run(quorate, "--version", folder=tmp_path).startswith("quorate ")
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    words = (
        "--home",
        tmp_path / "home",
        "--password-file",
        tmp_path / "password",
        "init",
        "--limits",
        "devnet",
        "--json",
    )
    assert json.loads(run(quorate, *words, folder=tmp_path))["account"].startswith("0x")
    (tmp_path / "job.yaml").write_text(
        f"image: python@sha256:{'0' * 64}\nmax_price: 0.5\ncommand: [python]\n"
    )
    assert "valid" in run(quorate, "validate", "-f", tmp_path / "job.yaml", folder=tmp_path)


@pytest.mark.index
def test_a_receipt_is_checked_without_extras(python: Path, tmp_path: Path) -> None:
    """The environment of the tests makes a receipt of a whole run. The light environment checks its
    signatures, beacon and rules.
    """
    market = Market(*[Party(number) for number in range(5)])
    market.until_decided(market.order(0, 1))
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt.document(canonical.decode(receipt.Receipt, market.receipts[0])))
    told = run(python.parent / "quorate", "verify", path, folder=tmp_path)
    assert told.startswith("identities are not pinned") and "\nvalid: " in told, told
