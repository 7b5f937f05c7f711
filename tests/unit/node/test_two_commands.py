"""Tests two commands of the owner on one home at the same time."""

import json
from pathlib import Path

from typer.testing import CliRunner

from quorate_node.base import settings
from quorate_node.cli.app import EXIT_UNAVAILABLE, app

URL = "http://127.0.0.1:7700"


def run(home: Path, *words: str) -> tuple[int, str]:
    """Runs a command with --home; returns its exit code and output."""
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    return result.exit_code, result.stdout


def test_two_commands_that_change_the_settings_at_once(tmp_path: Path) -> None:
    """The daemon would offer the price of one, and the file would keep that of the other."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    secret = ("--password-file", str(password))
    home, init = tmp_path / "home", ("init", *secret, "--coordinator", URL, "--limits", "devnet")
    assert run(home, *init)[0] == 0
    for words in (("price", "0.25"), (*init, "--slots", "2")):
        with settings.changing(home):
            code, text = run(home, *words, "--json")
        assert code == EXIT_UNAVAILABLE and "another command" in json.loads(text)["detail"]
        assert run(home, *words)[0] == 0
    assert (settings.read(home).price, settings.read(home).slots) == (250_000, 2)
