"""A job is run twice on this machine before it costs money, and its results are compared."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from support.executors.executor_cases import BWRAP, RUNC

TIMED = "import sys, time; open(sys.argv[1], 'w').write(f'at {time.time_ns()}')"
STEADY = "import sys; open(sys.argv[1], 'w').write('steady')"


def job_file(folder: Path, image: Path, program: str, **fields: Any) -> str:
    tree: Mapping[str, Any] = {
        "image": str(image),
        "command": ["python3", "-c", program, "/outputs/result.txt"],
        "max_price": 1,
        **fields,
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(tree))
    return str(path)


async def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(run_main, list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("sandbox", [RUNC])
async def test_a_program_that_writes_the_time_is_named_with_its_file(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, sandbox: str
) -> None:
    path = job_file(tmp_path, image, TIMED, sandbox=sandbox)
    kept = tmp_path / "kept"
    code, out, err = await checked(capsys, "check", "-f", path, "-o", str(kept))
    assert code == ExitCode.NOT_VERIFIED, err
    assert "different: providers would not agree" in out
    assert "result.txt differs from byte " in out and "write no times" in err
    assert (kept / "1" / "result.txt").read_bytes() != (kept / "2" / "result.txt").read_bytes()


@pytest.mark.parametrize("sandbox", [BWRAP])
async def test_a_program_that_fails_alike_is_equal_and_shows_its_last_lines(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, sandbox: str
) -> None:
    (tmp_path / "data").write_text("in")
    given = [{"path": "data", "mount": "/inputs/data"}]
    program = "print(open('/inputs/data').read()); 1 / 0"
    path = job_file(tmp_path, image, program, sandbox=sandbox, inputs=given)
    code, out, err = await checked(capsys, "check", "-f", path)
    assert code == ExitCode.JOB_FAILED and "equal: " in out and "exited with 1" in out, err
    assert "\nin\n" in err and "ZeroDivisionError" in err


@pytest.mark.bwrap
async def test_what_cannot_be_checked_is_said(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path
) -> None:
    path = job_file(tmp_path, image, STEADY, resources={"gpu": 1})
    code, _, err = await checked(capsys, "check", "-f", path)
    assert code == ExitCode.USAGE and "resources.gpu: jobs with GPUs cannot be checked" in err
    code, _, err = await checked(capsys, "check", "-f", path, "-o", str(tmp_path))
    assert code == ExitCode.USAGE and "already exists" in err
    given = [
        {"cid": "bafkreie7qrwbsiohfuffocyup5hrpllhyd7gjmrbzd7dikmcjvifngmieq", "mount": "/inputs/x"}
    ]
    path = job_file(tmp_path, image, STEADY, inputs=given, sandbox="bwrap")
    code, _, err = await checked(capsys, "check", "-f", path)
    assert code == ExitCode.USAGE and "inputs: /inputs/x: bafk" in err
