"""Tests the command line: flags, shell completion, and what a missing package or setting names."""

import json
import shutil
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli import offers, plugins
from quorate.cli.app import explain_missing
from quorate.cli.global_flags import moved
from quorate.cli.main import run_main
from quorate.client.base.client_ledger import Ledger
from quorate.trust import market_by_gossip
from quorate_contracts.deploy import Deployment, encode
from quorate_protocol.units import Address, BlockNumber, Seconds
from quorate_runtime.p2p import REMEDY
from quorate_runtime.version import version_number
from support.cli_prompt import password_file


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--home a ps", "ps --home a"),
        ("--home=a --json ps -x", "ps --home=a --json -x"),
        ("ps --home a", "ps --home a"),
        ("--version ps", "--version ps"),
        ("--home a --help", "--home a --help"),
        ("--home a", "--home a"),
        ("", ""),
    ],
)
def test_flags_before_a_command_move_behind_it(words: str, expected: str) -> None:
    assert moved(words.split()) == expected.split()


@pytest.fixture
def password(tmp_path: Path) -> str:
    return str(password_file(tmp_path))


@pytest.mark.parametrize("order", ["before", "between", "after"])
@pytest.mark.parametrize(
    ("program", "more"),
    [("", "--limits devnet"), ("node", "--limits devnet --coordinator http://127.0.0.1:7700")],
)
def test_every_program_takes_the_same_flags_in_every_place(
    tmp_path: Path,
    password: str,
    capsys: pytest.CaptureFixture[str],
    order: str,
    program: str,
    more: str,
) -> None:
    flags = ["--home", str(tmp_path / "home"), "--password-file", password, "--json"]
    group, rest = program.split(), ["init", *more.split()]
    words = {
        "before": [*flags, *group, *rest],
        "between": [*group, *flags, *rest],
        "after": [*group, *rest, *flags],
    }
    assert run_main(words[order]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["home"] == str(tmp_path / "home")


def test_a_flag_that_a_program_does_not_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["--client", "a", "node", "status"]) == ExitCode.USAGE
    assert "--client: `quorate node status` does not use it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("node statu", "did you mean `quorate node status`?"),
        ("pss", "did you mean `quorate ps`?"),
        ("zzzz", "see `quorate --help`"),
        ("image bild", "did you mean `quorate image build`?"),
        ("withdraw -1", "amount: an amount below zero is not possible; write one above zero"),
        ("node price -0.5", "amount: an amount below zero is not possible; write one above zero"),
        ("node init --store-gib 5", "quorate node init has no option --store-gib; did you mean"),
        ("run --max-prise 1 x", "quorate run has no option --max-prise; did you mean --max-price?"),
        ("describe", "missing argument 'RUN'; see `quorate describe --help`"),
        ("ps --last 0", "--last"),
    ],
)
def test_an_unknown_word_names_the_nearest(
    capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    assert run_main(words.split()) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert run_main([*words.split(), "--json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["exitCode"] == ExitCode.USAGE


@pytest.mark.parametrize("words", [["node"], ["node", "init", "--home", "x"], ["node", "up"]])
def test_a_group_without_its_packages_names_the_remedy(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = EntryPoint("node", "a_package_that_nobody_has.cli:app", plugins.GROUP)
    monkeypatch.setattr(plugins, "_found", lambda: {"node": absent})
    assert run_main(words) == ExitCode.USAGE
    assert (
        "a_package_that_nobody_has" in (told := capsys.readouterr().err)
        and "pip install 'quorate[node]'" in told
    )


@pytest.mark.parametrize("program", ["", "node", "coordinator", "devnet"])
def test_every_program_prints_its_version(capsys: pytest.CaptureFixture[str], program: str) -> None:
    assert run_main([*program.split(), "--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith(f"quorate {version_number()} (Python ")


PLACES = [Address(bytes([number]) * 20) for number in range(1, 8)]
DEPLOYMENT = Deployment(31337, BlockNumber(0), "devnet", *PLACES, bytes(96), Seconds(2), 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "market.json"
    path.write_bytes(encode(DEPLOYMENT))
    return path


def test_what_is_missing_is_named(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home"), "offers"]
    cases = (
        (["--for", "5s"], "need --p2p"),
        (["--p2p"], "--deployment FILE"),
        (["--p2p", "--deployment", str(file)], "--chain-url URL"),
        (["--p2p", "--deployment", str(file), "--chain-url", "ftp://x"], "--chain-url"),
        (["--p2p", "--deployment", str(tmp_path / "no"), "--chain-url", "http://x"], "no"),
        (["--p2p", "--for", "0s"], "--for: 0s must be above zero"),
    )
    for words, said in cases:
        assert run_main([*home, *words]) == ExitCode.USAGE
        assert said in capsys.readouterr().err


def test_a_client_without_libp2p_is_told_how_to_get_it(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a machine without a compiler and GMP headers."""
    monkeypatch.setattr(market_by_gossip, "available", lambda: f"it cannot be imported: {REMEDY}")
    words = ["offers", "--p2p", "--deployment", str(file), "--chain-url", "http://127.0.0.1:1"]
    assert run_main(words) == ExitCode.UNAVAILABLE
    assert "pip install 'quorate[p2p]'" in capsys.readouterr().err


def test_the_default_time_covers_one_refresh_of_each_provider() -> None:
    assert market_by_gossip.listening_seconds(DEPLOYMENT) > DEPLOYMENT.constants().offer_refresh
    assert offers.SECONDS_MAX > 365, "the default of mainnet"


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run_main(["__complete", *words]) == ExitCode.OK
    return capsys.readouterr().out.split()


def test_commands_options_and_groups_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"ps", "offers", "node", "--home"} <= set(completed(capsys))
    assert {"init", "up", "status"} <= set(completed(capsys, "node"))
    assert {"--state", "--last", "--json", "--home"} <= set(completed(capsys, "ps"))
    assert {"--state", "--last"} <= set(completed(capsys, "--home", "x", "ps"))
    assert completed(capsys, "no-such-command") == []


def test_names_of_runs_are_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "client.json").write_text(
        json.dumps({"coordinator": "http://127.0.0.1:7700", "limits": "devnet"})
    )
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number, name in enumerate(("train", "$(rm -rf)")):
        ledger._db.execute(
            'INSERT INTO orders (job_id, coordinator, nonce, name, "order", spec, session,'
            " submitted_at, reserved, funded_until, is_returned) VALUES (?, x'', '1', ?, x'', x'',"
            " x'', 0, '0', 0, 0)",
            (bytes([number]), name),
        )
    ledger.close()
    found = completed(capsys, "describe", "--home", str(tmp_path))
    assert "train" in found and not any("rm" in word for word in found)
    assert completed(capsys, "describe", "--home") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_printed(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path: Path
) -> None:
    assert run_main(["completion", shell]) == ExitCode.OK
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "quorate __complete" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("docker.errors", "node up", "quorate[node]"),
        ("numpy", "node check", "quorate[node]"),
        ("sqlalchemy", "coordinator report", "quorate[coordinator]"),
        ("asyncpg", "coordinator up", "quorate[postgres]"),
        ("eth", "devnet up", "quorate[devnet]"),
        ("libp2p", "offers --p2p", "quorate[p2p]"),
        ("numpy", "offers --verify", "quorate[attest]"),
    ],
)
def test_a_missing_package_names_its_extra(package: str, words: str, extra: str) -> None:
    told = explain_missing(ModuleNotFoundError("gone", name=package), words.split())
    assert f"pip install '{extra}'" in told
    assert explain_missing(ModuleNotFoundError("gone", name="mine"), words.split()) == ""
