"""A job array from the command line: a table of results, continued by the same command."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from support.markets.cli_calls import IMAGE, cli_calls
from support.markets.fake_market import Cheat, FakeMarket

Call = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def call(fake: FakeMarket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return cli_calls(fake, tmp_path, capsys)


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
