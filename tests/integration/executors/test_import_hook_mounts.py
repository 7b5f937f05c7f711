"""Tests that a job of the torch profile has its hook and variables in every sandbox."""

import json
from pathlib import Path

import pytest

from quorate_protocol.messages.determinism import PROFILES
from quorate_runtime.process.hook_folder import write_hook
from support.executors.executor_cases import (
    SANDBOXES,
    VOLUME,
    ending,
    make_executor,
    python_task,
    said,
)
from support.fake_torch import write_torch

TORCH = PROFILES["torch"]
CODE = """
import json, os, sys, torch
folder = os.path.dirname(sys.modules["sitecustomize"].__file__)
def attempt(work):
    try:
        work()
        return "done"
    except OSError as error:
        return "refused"
files = os.listdir(folder)
# The executor without a sandbox protects nothing.
changes = [] if not folder.startswith("/scratch") else [
    attempt(lambda: open(folder + "/sitecustomize.py", "a")),
    attempt(lambda: open(folder + "/other.py", "w")),
    attempt(lambda: os.rename(folder, folder + "2")),
]
print(json.dumps([json.loads(torch.shown()), files, changes, dict(os.environ)]))
"""


@pytest.mark.rule("2.36", "2.38")
@pytest.mark.parametrize("kind", ["process", VOLUME, *SANDBOXES])
async def test_the_hook_is_mounted_read_only_and_runs(
    kind: str, image: Path, tmp_path: Path
) -> None:
    write_torch(tmp_path / "lib")
    task = python_task(
        image,
        CODE,
        mounts={"/inputs/lib": tmp_path / "lib"},
        env={**dict(TORCH.variables), "PYTHONPATH": "/inputs/lib"},
        hook=write_hook(tmp_path / "hooks" / "torch", TORCH),
    )
    async with ending(make_executor(kind, tmp_path), kind, tmp_path) as executor:
        text = await said(executor, task)
    switches, files, changes, env = json.loads(text)
    assert switches == [True, False, True] and files == ["sitecustomize.py"]
    first, second = env["PYTHONPATH"].split(":")
    assert first.endswith("/scratch/.quorate") and second.endswith("/inputs/lib")
    assert env["TRITON_CACHE_DIR"] == env["QUORATE_SCRATCH"] + "/.cache/triton"
    assert env.items() >= {
        (name, value) for name, value in TORCH.variables if not value.startswith("/scratch")
    }
    assert changes == ([] if kind == "process" else ["refused"] * 3)
    assert (first == "/scratch/.quorate") == (kind != "process")
