"""Tests habits that all commands share: each prints JSON on request, and messages are short."""

from pathlib import Path

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


def test_a_long_message_is_found_through_its_values_and_branches(tmp_path: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    many = " ".join(["word"] * 23)
    (folder / "a.py").write_text(
        f'END = "two more"\nraise Refused(f"{{name}} {{END if late else \'\'}} {many}")\n'
    )
    (found,) = cli_messages.too_long(tmp_path)
    assert (found.path, found.line, found.words) == ("sdk/a.py", 2, 26)
