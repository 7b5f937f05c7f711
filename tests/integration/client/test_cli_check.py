"""A job is run twice on this machine before it costs money, and its results are compared."""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate_protocol.units import VerifyTier
from support.executors.executor_cases import BWRAP, RUNC
from support.markets.cli_calls import IMAGE, Call, cli_calls
from support.markets.fake_market import Cheat, FakeMarket

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


NOISY = """import json, os
noise = int.from_bytes(os.urandom(4), "big") / 2**32
json.dump({"loss": [1.0, 1 + noise / 2000]}, open("/outputs/metrics.json", "w"))"""


@pytest.mark.parametrize("sandbox", [BWRAP])
async def test_how_far_numbers_are_apart_is_said(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, sandbox: str
) -> None:
    path = job_file(tmp_path, image, NOISY, sandbox=sandbox)
    code, out, err = await checked(capsys, "check", "-f", path)
    assert code == ExitCode.NOT_VERIFIED, err
    assert re.search(r"metrics.json: as numbers \d\.\de-0\d apart", out), out
    code, out, err = await checked(capsys, "check", "-f", path, "--json")
    tree = json.loads(out)
    (apart,) = tree["distances"]
    assert apart["path"] == "metrics.json" and 0 < apart["ppb"] < 1_000_000
    assert tree["compare"] == "numeric"
    assert tree["tolerancePpm"] == math.ceil(apart["ppb"] * 3 // 2 / 1000)


@pytest.mark.parametrize("sandbox", [BWRAP])
async def test_the_comparator_to_write_into_the_job_is_said(
    capsys: pytest.CaptureFixture[str], image: Path, sandbox: str
) -> None:
    words = ("image", "check", str(image))
    code, out, err = await checked(capsys, *words, "--", "python3", "-c", WRITES.format("1"))
    assert code == 0 and "\ncompare: exact\n" in out and "Other hardware" in err
    code, out, err = await checked(capsys, *words, "--", "python3", "-c", NOISY)
    assert code == ExitCode.NOT_VERIFIED
    assert re.search(r"compare: numeric, with a tolerance of [1-9]\d{0,2} ppm\n", out), out
    assert "machines of other classes are further apart" in err
    random = WRITES.format("os.urandom(8).hex()")
    code, out, _ = await checked(capsys, *words, "--", "python3", "-c", random)
    assert code == ExitCode.NOT_VERIFIED
    assert "compare: no comparator fits: a.txt: its bytes differ, and numeric does" in out
    code, out, err = await checked(capsys, *words, "--", "python3", "-c", "1 / 0")
    assert code == ExitCode.JOB_FAILED and "ZeroDivisionError" in err
    assert "compare: no comparator fits: the program exited with 1" in out
    code, _, err = await checked(capsys, "image", "check", "./absent.tar", "--", "true")
    assert code == ExitCode.USAGE and "absent.tar does not exist" in err


WRITES = "import os; open('/outputs/a.txt', 'w').write(str({}))"


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


@pytest.fixture
def call(fake: FakeMarket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return cli_calls(fake, tmp_path, capsys)


async def test_on_the_market_one_class_is_named_and_further_tries_are_paid(
    call: Call, fake: FakeMarket
) -> None:
    ordered = ("image", "check", IMAGE, "--max-price", "0.5", "--on-market")
    code, out, err = await call(*ordered, "--yes", "--tries", "2", "--", "train")
    assert code == 0 and "compare: exact" in out and "x86_64-v3 and 0x" in out, err
    assert "Both owners are of one determinism class, x86_64-v3: this holds" in err
    orders = [job.submission for job in fake.jobs.values()]
    assert [item.spec.compare.tolerance_ppm for item in orders] == [100_000] * 2
    assert {item.order.message.verify_tier for item in orders} == {VerifyTier.CRITICAL}
    for words, said in (
        ((*ordered, "--json", "--", "train"), "--json cannot ask, so add --yes"),
        ((*ordered, "--compare", "text", "--", "train"), "compare: --on-market measures numbers"),
        (("image", "check", IMAGE, "--on-market", "--", "train"), "--max-price is missing"),
        (("image", "check", IMAGE, "--tries", "2", "--", "train"), "add --on-market"),
    ):
        code, _, err = await call(*words)
        assert code == ExitCode.USAGE and said in err
    code, _, err = await call(*ordered, "--max-price", "0.01", "--yes", "--", "train")
    assert code == ExitCode.REFUSED and "raise max_price" in err and len(fake.jobs) == 2


async def test_a_sweep_is_ordered_once_and_the_same_command_shows_its_results_again(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    options = ("--max-price", "0.5", "--ttl", "1m", "-o", str(tmp_path / "out"))
    words = ("run", IMAGE, *options, "--sweep", "lr=0.1,0.01", "--seeds", "2", "--name", "tile")
    code, out, err = await call(*words, "--", "train", "--lr={lr}")
    assert code == 0, err
    assert "4 of 4 runs succeeded" in err and len(fake.jobs) == 4
    specs = [ordered.submission.spec for ordered in fake.jobs.values()]
    assert {spec.argv for spec in specs} == {("train", "--lr=0.1"), ("train", "--lr=0.01")}
    assert "tile-lr-0-01-seed-1" in {
        ordered.submission.terms.name for ordered in fake.jobs.values()
    }
    assert (tmp_path / "out" / "lr=0.1,seed=0" / "result.txt").is_file()
    code, out, _ = await call(*words, "--json", "--", "train", "--lr={lr}")
    tree = json.loads(out)
    assert code == 0 and len(fake.jobs) == 4 and len(tree["elements"]) == 4
    assert tree["elements"][3]["params"] == {"lr": "0.01", "seed": "1"}
    fake.cheat = Cheat(exit_status=3)  # of the element that is new
    code, out, _ = await call(*words, "--sweep", "more=1", "--", "train", "--lr={lr}")
    assert code == ExitCode.JOB_FAILED and out.count("exited with 3") == 4


async def test_a_sweep_that_fails_in_part_has_its_own_exit_code(
    call: Call, fake: FakeMarket
) -> None:
    words = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m", "--sweep")
    code, _, err = await call(*words, "n=1", "--", "x")
    assert code == 0, err
    fake.cheat = Cheat(exit_status=3)
    code, out, err = await call(*words, "n=1,2", "--", "x")
    assert code == ExitCode.PARTLY_FAILED and len(fake.jobs) == 2
    assert "n=2: see what it printed: quorate --devnet" in err and "n=1: see" not in err
    assert "exited with 3" in out and "exited with 0" in out


async def test_a_sweep_s_budget_is_for_all_its_runs(call: Call, fake: FakeMarket) -> None:
    words = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m", "--seeds", "4", "--budget")
    code, _, err = await call(*words, "0.2", "--", "x")
    assert code == 0, err
    assert sum(job.submission.order.message.budget for job in fake.jobs.values()) == 200_000
    code, _, err = await call(*words, "0.01", "--", "y")
    assert code == 2 and "The 4 runs of a sweep share its budget" in err
