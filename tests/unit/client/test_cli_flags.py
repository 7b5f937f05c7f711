"""Tests that the flags of every command stand before or after its name alike, for all programs."""

import json
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.global_flags import moved
from quorate.cli.main import run_main


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
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    return str(path)


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
