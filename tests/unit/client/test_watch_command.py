"""Tests `quorate watch` without a network."""

import json
from pathlib import Path

import pytest

from quorate.cli.main import run_main
from quorate.exit_codes import ExitCode
from quorate_contracts.watch.watch_file import Action, WatchState, write_watch
from quorate_protocol.units import Address, Amount, UnixSeconds

ME, COORDINATOR = Address(b"\x01" * 20), Address(b"\x02" * 20)


def test_what_a_watcher_did_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    action = Action(UnixSeconds(9), COORDINATOR, "challenge_statement", 3, Amount(1_500_000))
    write_watch(tmp_path, WatchState(ME).with_action(action))
    words = ["--home", str(tmp_path), "watch", "--list"]
    assert run_main(words) == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith("9 challenge_statement of epoch 3") and "1.50 USD: sent" in said
    assert run_main([*words, "--json"]) == ExitCode.OK
    tree = json.loads(capsys.readouterr().out)
    assert (tree["epoch"], tree["amount"], tree["outcome"]) == (3, 1_500_000, "sent")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([], "--home FOLDER"),
        (["--home", "HOME", "--account", "0x12"], "40 hex digits"),
        (["--home", "HOME"], "--account ADDRESS"),
        (["--home", "HOME", "--account", "0x" + "11" * 20], "--key FILE"),
    ],
)
def test_a_watch_that_lacks_something_says_what(
    words: list[str], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_main(["watch", *(str(tmp_path) if word == "HOME" else word for word in words)])
    assert code in (ExitCode.USAGE, ExitCode.REFUSED) and remedy in capsys.readouterr().err
