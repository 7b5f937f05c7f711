"""Tests habits that all commands share: each prints JSON on request, and messages are short."""

from pathlib import Path

import pytest

from quorate.cli.app import answer
from support import cli_commands, cli_messages


def test_every_command_prints_json_on_request() -> None:
    assert len(list(cli_commands.commands())) > 40
    assert cli_commands.without_json() == []


def test_every_message_has_at_most_25_words() -> None:
    assert len(list(cli_messages.messages())) > 1_000
    long = [
        f"{item.path}:{item.line}: {item.words}: {item.text}" for item in cli_messages.too_long()
    ]
    assert long == []


CID = "bafkreig5lkvyutsjj3bd6njovcitvugpprjdlrhxdwkco4md6rvphse7rm"
HOMELESS = (
    *("ps", "logs x", "events x", "describe x", "get x", "offers", "classes", "market", "balance"),
    *("spend", "lock", "data ls", f"data stat {CID}", f"data pin {CID}", "data gc", "data serve"),
    *("node check", "node health", "node status", "node pause", "node price 1", "node withdraw"),
    *("node leave", "node rotate", "node up", "coordinator health", "coordinator status"),
    *("coordinator report", "coordinator withdraw", "coordinator up", "withdraw", "unlock"),
)


def test_command_on_a_mistyped_home_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUORATE_PASSWORD", "a passphrase")
    for words in HOMELESS:
        code = answer([*words.split(), "--home", str(tmp_path / "mistyped")])
        assert code != 0 or words == "lock", words
        assert list(tmp_path.iterdir()) == [], words


def test_a_long_message_is_found_through_its_values_and_branches(tmp_path: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    many = " ".join(["word"] * 23)
    (folder / "a.py").write_text(
        f'END = "two more"\nraise Refused(f"{{name}} {{END if late else \'\'}} {many}")\n'
    )
    (found,) = cli_messages.too_long(tmp_path)
    assert (found.path, found.line, found.words) == ("sdk/a.py", 2, 26)
