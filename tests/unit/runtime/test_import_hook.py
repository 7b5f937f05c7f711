"""Tests the import hook of the torch profile in Pythons of their own, with a stand-in for torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quorate_protocol.messages.determinism import PROFILES
from quorate_protocol.refusals import Refused
from quorate_protocol.values import replace
from quorate_runtime.process.hook_folder import write_hook
from support.fake_torch import SHOW, write_torch

TORCH = PROFILES["torch"]
OF_THE_HOOK = {"sitecustomize", "importlib", "warnings", "__future__"}


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    found = write_hook(tmp_path / "hooks" / "torch", TORCH)
    assert found is not None
    return found


def python(code: str, *places: Path) -> subprocess.CompletedProcess[str]:
    """Runs code with these folders on PYTHONPATH, and nothing else of this process."""
    path = ":".join(str(place) for place in places)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.rule("2.38")
@pytest.mark.parametrize(
    "code",
    [
        f"import torch; {SHOW}",
        f"import torch.nn.functional; import torch; {SHOW}",
        f"import importlib.util as u; u.find_spec('torch'); import torch; {SHOW}",
        f"import torch, importlib; torch.set(0); importlib.reload(torch); {SHOW}",
    ],
)
def test_torch_is_deterministic_right_after_its_import(
    hook: Path, tmp_path: Path, code: str
) -> None:
    write_torch(tmp_path)
    done = python(code, hook, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [True, False, True]
    assert json.loads(python(code, tmp_path).stdout) == [False, True, False], "without the hook"


@pytest.mark.rule("2.38")
def test_a_program_without_torch_does_not_notice_the_hook(hook: Path, tmp_path: Path) -> None:
    code = "import sys, json; print(json.dumps([sorted(sys.modules), sys.flags.optimize]))"
    with_hook, without = json.loads(python(code, hook).stdout), json.loads(python(code).stdout)
    assert "torch" not in with_hook[0] and with_hook[1:] == without[1:]
    added = set(with_hook[0]) - set(without[0])
    assert {name.partition(".")[0] for name in added} <= OF_THE_HOOK
    lacking = python("import torch", hook)
    assert lacking.returncode == 1 and "No module named 'torch'" in lacking.stderr


@pytest.mark.rule("2.38")
@pytest.mark.parametrize("code", ["import torch", "try:\n import torch\nexcept BaseException: 0"])
def test_a_torch_that_cannot_be_deterministic_ends_the_program(
    hook: Path, tmp_path: Path, code: str
) -> None:
    write_torch(tmp_path, breaks="no deterministic\\nkernel")
    done = python(f"print('before')\n{code}\nprint('after')", hook, tmp_path)
    assert (done.returncode, done.stdout) == (78, "before\n")
    [line] = done.stderr.splitlines()
    assert "RuntimeError: no deterministic kernel" in line and "determinism: none" in line


@pytest.mark.rule("2.38")
def test_the_sitecustomize_of_the_image_still_runs(hook: Path, tmp_path: Path) -> None:
    write_torch(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_the_image = 7\n")
    code = (
        f"import sitecustomize; print(of_the_image, sitecustomize.__file__); import torch; {SHOW}"
    )
    first, second = python(code, hook, tmp_path).stdout.splitlines()
    assert first == f"7 {tmp_path}/sitecustomize.py"
    assert json.loads(second) == [True, False, True]


@pytest.mark.rule("2.37", "2.38")
def test_the_folder_is_readable_by_all_and_written_once(tmp_path: Path) -> None:
    folder = write_hook(tmp_path / "hooks", TORCH)
    assert folder is not None
    [path] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o755, 0o644)
    inode = path.stat().st_ino
    path.write_text("changed")
    assert write_hook(folder, TORCH) == folder and path.read_text() != "changed"
    assert path.stat().st_ino != inode
    inode = path.stat().st_ino
    assert write_hook(folder, TORCH) == folder and path.stat().st_ino == inode
    assert write_hook(tmp_path / "none", PROFILES["jax"]) is None
    assert not (tmp_path / "none").exists()
    with pytest.raises(Refused, match="is not the hook of torch; install quorate again"):
        write_hook(folder, replace(TORCH, hook=TORCH.digest()))
