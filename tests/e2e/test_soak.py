"""A small version of `make soak`: providers and coordinator are killed with -9 under load, and
nothing acknowledged is lost.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
WORDS = [
    "--minutes",
    "0.4",
    "--providers",
    "8",
    "--per-process",
    "4",
    "--churn",
    "150",
    "--rate",
    "2",
    "--outstanding",
    "20",
    "--clients",
    "2",
    "--coordinator-kills",
    "1",
    "--drain",
    "120",
]


@pytest.mark.slow
def test_a_small_soak_loses_nothing(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "soak.run", *WORDS, "--folder", str(tmp_path / "soak")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["acknowledged_lost"] == 0 and line["kills"] >= 3, line
    assert line["jobs_done"] == line["acknowledged"] > 10, line
    assert not [code for code in line["refused"] if code.startswith(("client:unknown", "end:"))], (
        line
    )
