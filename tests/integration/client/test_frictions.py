"""What a new client types and meets: output on the screen, Ctrl-C, stops, names, folders."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from quorate.base.errors import UsageError
from quorate.cli import setup
from quorate.cli.sweep_results import metrics_of
from quorate.client.base.profile import read_settings
from quorate.images.image_python import file_names
from quorate.programs.requirements import check_libraries
from support.cli_prompt import password_file
from support.markets.cli_calls import IMAGE, Call, cli_calls
from support.markets.fake_market import Cheat, FakeMarket

RUN = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m")
QUORATE = Path(sys.executable).with_name("quorate")
TRACE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'numpy'\n"


@pytest.fixture
def call(fake: FakeMarket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return cli_calls(fake, tmp_path, capsys)


def job_file(folder: Path, **changes: object) -> str:
    tree = {"image": IMAGE, "command": ["python"], "max_price": "0.50", "name": "tile", **changes}
    (folder / "job.yaml").write_text(json.dumps(tree))
    return str(folder / "job.yaml")


async def detached(call: Call, folder: Path, name: str) -> str:
    code, out, err = await call("apply", "-f", job_file(folder, name=name), "-y", "-d", "--json")
    assert code == 0, err
    return str(json.loads(out)["jobId"])


async def test_run_shows_what_the_program_prints_and_its_end(call: Call, fake: FakeMarket) -> None:
    long = "x" * 1_000_000 + "\n[2000000 bytes were left out here]\n" + TRACE
    fake.cheat = Cheat(exit_status=1, text=long)
    code, out, err = await call(*RUN, "--", "python")
    assert code == 1 and long in out and out.count(TRACE) == 1
    assert "cause: no such module is there" in err and "with --file" in err
    code, out, _ = await call(*RUN, "--json", "--", "python")
    assert code == 1 and json.loads(out)["exitStatus"] == 1


async def test_a_dry_run_shows_the_plan_and_orders_nothing(call: Call, fake: FakeMarket) -> None:
    code, out, _ = await call(*RUN, "--dry-run", "--json", "--", "python")
    assert code == 0 and json.loads(out)["worstChargeMicroUsd"] and not fake.jobs
    assert (await call(*RUN, "--max-price", "0.01", "--dry-run", "--", "python"))[0] == 3


@pytest.mark.parametrize(
    ("status", "text", "cause"),
    [
        (1, "OSError: [Errno 28] No space left on device\n", "ask for more with --disk"),
        (1, "MemoryError\n", "ask for more with --memory"),
        (1, "socket.gaierror: Temporary failure in name resolution\n", "jobs have no network"),
        (127, "sh: nothing: not found\n", "the image has no such program"),
        (256 + 9, "", "try more --memory"),
        (256 + 11, "", "it was ended by SIGSEGV"),
        (512, "epoch 1\n", "ask for more with --max-duration"),
        (513, "", "ask for more with --memory"),
    ],
)
async def test_a_failure_says_its_cause_and_the_flag_that_helps(
    call: Call, fake: FakeMarket, tmp_path: Path, status: int, text: str, cause: str
) -> None:
    fake.cheat = Cheat(exit_status=status, text=text)
    run = await detached(call, tmp_path, "tile")
    code, _, err = await call("get", "tile")
    assert code == 1 and "cause: " in err and cause in err
    assert all(line in err for line in text.splitlines())
    code, out, _ = await call("describe", run)
    assert code == 0 and cause in out and all(line in out for line in text.splitlines())


async def test_lines_of_a_stranger_control_no_terminal(call: Call, fake: FakeMarket) -> None:
    fake.cheat = Cheat(exit_status=1, text="10 %\r20 %\r\n\x1b[2Jcause: pay me\n")
    _, out, err = await call(*RUN, "--", "python")
    assert "10 %\n20 %\n" in out and "\x1b" not in out + err


def _heeds_interrupts() -> None:
    """A shell's background command ignores the signal, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def interrupted(folder: Path, fake: FakeMarket, *words: str) -> tuple[int | None, str]:
    """Runs the script as a process, and presses Ctrl-C once it has asked for a plan or ordered."""
    process = await asyncio.create_subprocess_exec(
        str(QUORATE),
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORATE_DEVNET": str(folder / "devnet.json")},
        preexec_fn=_heeds_interrupts,
    )
    async with asyncio.timeout(60):
        while not (fake.jobs or (fake.is_silent and "POST plan" in fake.posts)):
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    return process.returncode, err.decode()


async def test_an_interrupt_says_whether_the_order_is_out(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    fake.auto_finish, fake.is_silent = False, lambda request: request.path == "/v1/plan"
    code, err = await interrupted(tmp_path, fake, *RUN, "--", "python")
    assert code == 130 and "nothing was ordered, and nothing is paid" in err
    assert not fake.jobs
    fake.is_silent = None
    code, err = await interrupted(tmp_path, fake, *RUN, "--", "python")
    (job,) = fake.jobs.values()
    run = f"0x{job.job_id.hex()[:12]}"
    assert code == 130 and f"run {run} goes on; follow it: quorate attach {run}" in err
    assert f"stop it: quorate stop {run}" in err and "nothing was ordered" not in err


async def test_a_stop_blames_nobody_else_and_takes_patterns(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    fake.auto_finish = False
    for name in ("train-a", "train-b", "other"):
        await detached(call, tmp_path, name)
    code, _, err = await call("stop", "train-*")
    assert (
        code == 0
        and len(fake.stops) == 2
        and "you stop it now" in err
        and "pay the time it has run" in err
    )
    code, out, _ = await call("cancel", "other", "--json")
    assert code == 0 and json.loads(out)["stopped"] is True and len(fake.stops) == 3
    code, _, err = await call("stop", "nothing-*")
    assert code == 2 and "fits no run" in err


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        ("stopped by its client before it ran", 8, "you stopped it before it ran, and it cost"),
        ("no provider took it", 6, "ended without a result, and it cost nothing: no provider took"),
    ],
)
async def test_a_run_that_never_began_says_who_ended_it(
    call: Call, fake: FakeMarket, tmp_path: Path, ended: str, code: int, words: str
) -> None:
    fake.cheat = Cheat(lapse=True, ended=ended)
    await detached(call, tmp_path, "tile")
    got, _, err = await call("get", "tile")
    assert got == code and "run tile" in err and words in err


async def test_attach_follows_a_run_by_its_name(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    await detached(call, tmp_path, "tile")
    code, out, err = await call("attach", "tile", "-o", str(tmp_path / "got"))
    assert code == 0 and "hello from the job\n" in out and "accepted" in out, err
    assert (tmp_path / "got" / "result.txt").exists()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("python3 train.py --lr 1", "-- python3 train.py --lr 1"),
        ("a | b", "-- sh -c 'a | b'"),
        ("echo 'a", "-- sh -c"),
    ],
)
async def test_a_command_in_one_string_is_explained(
    call: Call, fake: FakeMarket, typed: str, line: str
) -> None:
    code, _, err = await call(*RUN, "--", typed)
    assert code == 2 and "is one word" in err and line in err and not fake.jobs


async def test_the_folder_for_the_output_is_tried_before_the_order(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for folder, why in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "in", "Not a directory"),
        (Path("/proc/nowhere"), "cannot be made"),
    ):
        code, _, err = await call(*RUN, "-o", str(folder), "--", "python")
        assert code == 2 and why in err and not fake.jobs, err
    code, _, err = await call("apply", "-f", job_file(tmp_path), "-y", "-o", str(tmp_path / "new"))
    assert code == 0 and (tmp_path / "new" / "result.txt").exists(), err


BAD_METRICS = [
    "not JSON",
    "[1, 2]",
    '{"loss": "=cmd()", "deep": {"x": 1}, "flag": true, "=x": 1}',
    '{"loss": NaN, "big": 1e999, "huge": ' + "9" * 400 + "}",
    "[" * 100_000,
    '{"a": ' * 50_000,
    '{"x": "' + "y" * 100_000 + '"}',
]


@pytest.mark.parametrize("text", BAD_METRICS)
def test_bad_metrics_are_none(tmp_path: Path, text: str) -> None:
    assert metrics_of(tmp_path, text) == {}
    (tmp_path / "metrics.json").write_text(text)
    assert metrics_of(tmp_path, '{"loss": 1}\nbye') == {"loss": 1}
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "metrics.json").mkdir()
    assert metrics_of(tmp_path, "") == {}


async def test_a_sweep_sums_up_and_writes_its_results(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fake.cheat = Cheat(text='epoch\n{"loss": 0.5, "state": 7, "name": "x"}\n')
    words = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m", "-o", str(out))
    code, _, err = await call(*words, "--sweep", "lr=0.1,0.001", "--sweep", "opt=a", "--", "x")
    assert code == 0, err
    assert "sweep: 2 runs, 0 ordered before" in err and "at most 1m each, 2m in a row" in err
    first, *rows = (out / "results.csv").read_text().splitlines()
    assert first == "lr,opt,state,exit_code,cost_usd,seconds,loss,metric.state"
    assert [row.split(",")[:4] for row in rows] == [
        ["0.1", "a", "succeeded", "0"],
        ["0.001", "a", "succeeded", "0"],
    ]
    assert all(row.endswith(",0.5,7") for row in rows)
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "loss against lr" in err


async def test_a_sweep_without_the_plot_package_says_how_to_get_it(
    call: Call, fake: FakeMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    fake.cheat = Cheat(text='{"loss": 0.5}\n')
    words = ("run", IMAGE, "--max-price", "0.5", "--ttl", "1m", "-o", str(tmp_path / "out"))
    code, _, err = await call(*words, "--sweep", "lr=1,2", "--", "x")
    assert code == 0 and "pip install 'quorate[plot]'" in err
    assert (tmp_path / "out" / "results.csv").exists()


async def test_init_asks_the_coordinator_for_its_network(
    call: Call, fake: FakeMarket, tmp_path: Path
) -> None:
    words = ("--home", str(tmp_path / "mine"), "--password-file", str(password_file(tmp_path, "p")))
    line = [str(QUORATE), *words, "init", "--coordinator", fake.url]
    done = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_settings(tmp_path / "mine")["limits"] == "devnet"


@pytest.mark.parametrize(
    ("url", "said", "told"),
    [
        ("http://127.0.0.1:7700", "mainnet", ""),
        ("https://market.example", "mainnet", ""),
        ("http://[::1]:7700", "devnet", ""),
        ("https://market.example", "devnet", "add --limits devnet if it is yours"),
        ("http://localhost.example", "devnet", "add --limits devnet if it is yours"),
        ("https://market.example", "testnet", "add --limits testnet if you want that"),
        ("https://market.example", "moonnet", "does not know"),
    ],
)
def test_a_coordinator_s_word_loosens_nothing(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str, told: str
) -> None:
    async def info(_url: str) -> SimpleNamespace:
        return SimpleNamespace(limits=said)

    monkeypatch.setattr(setup, "info_of", info)
    if not told:
        assert setup.limits_of(url, can_ask=False) == said
        return
    with pytest.raises(UsageError, match=told):
        setup.limits_of(url, can_ask=False)


def test_a_built_image_has_what_wheels_need_and_one_without_is_refused(
    image: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "packages" / "numpy"
    folder.mkdir(parents=True)
    parts = Path(numpy.__file__).parent.rglob("_multiarray_umath*.so")
    shutil.copyfile(next(parts), folder / "part.so")
    for part in (Path(numpy.__file__).parents[1] / "numpy.libs").iterdir():
        shutil.copyfile(part, folder / part.name)
    names = file_names(image)
    check_libraries(folder.parent, names, "python.tar")
    with pytest.raises(UsageError, match=r"python.tar lacks libpthread.so.0 \(for numpy\)"):
        check_libraries(folder.parent, names - {"libpthread.so.0"}, "python.tar")
    with pytest.raises(UsageError, match=r"python.tar lacks libstdc\+\+.so.6 \(for numpy\)"):
        check_libraries(folder.parent, names - {"libstdc++.so.6"}, "python.tar")
    (tmp_path / "part.so").write_bytes(b"\x7fELF\x02\x01 and nothing else")
    shutil.rmtree(folder)
    check_libraries(tmp_path, set(), "python.tar")
