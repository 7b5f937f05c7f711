"""The client alone: without extras the distribution installs into an empty environment and `import quorate` stays light."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("docker", "sqlalchemy", "aiosqlite", "numpy", "eth_tester", "eth", "libp2p", "vyper", "web3")
IMPORT_SECONDS_MAX = 0.5

# Run three times; the fastest counts, and the processor's time, as other programs share the machine.
PROGRAM = f"""
import importlib.util, json, sys, time
started = time.process_time()
import quorate
seconds = time.process_time() - started
for name in quorate.__all__:
    getattr(quorate, name)  # loaded at first use: everything that a client can name must work without extras
print(json.dumps({{
    "seconds": seconds,
    "file": quorate.__file__,
    "installed": [name for name in {HEAVY!r} if importlib.util.find_spec(name)],
    "loaded": [name for name in {HEAVY!r} if name in sys.modules],
}}))
"""


def run(*command: str | Path, folder: Path) -> str:
    """stdout of a command that succeeds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds the distribution, no extras."""
    folder = tmp_path_factory.mktemp("light")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", folder=folder)
    interpreter = folder / "env" / "bin" / "python"
    # By this environment's pip, and without compiling what no test imports: both would take most of the time.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", "--no-input", "--no-compile"]
    run(*pip, "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt", ROOT, folder=folder)
    return interpreter


@pytest.mark.index
def test_import_without_extras_is_light(python: Path, tmp_path: Path) -> None:
    runs = [json.loads(run(python, "-c", PROGRAM, folder=tmp_path)) for _ in range(3)]
    assert Path(runs[0]["file"]).is_relative_to(python.parents[1])
    assert runs[0]["installed"] == []
    assert runs[0]["loaded"] == []
    assert min(each["seconds"] for each in runs) <= IMPORT_SECONDS_MAX


@pytest.mark.index
def test_command_line_works_without_extras(python: Path, tmp_path: Path) -> None:
    assert "validate" in run(python.parent / "quorate", "--help", folder=tmp_path)
