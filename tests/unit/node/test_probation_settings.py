"""`quorate node init --probation`: what it takes, and what it says."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate_node.base import settings
from quorate_node.cli.app import app
from quorate_runtime.process.command_errors import EXIT_REFUSED


@pytest.mark.rule("5.92")
def test_probation_offers_one_run_slot(tmp_path: Path) -> None:
    home, password = tmp_path / "node", tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    words = [
        "init",
        "--coordinator",
        "http://127.0.0.1:7700",
        "--limits",
        "devnet",
        "--probation",
        "--home",
        str(home),
    ]
    words += ["--password-file", str(password)]
    refused = CliRunner().invoke(app, [*words, "--slots", "2"])
    assert refused.exit_code == EXIT_REFUSED
    assert "--slots 1 and no --gpu-price" in refused.stderr
    made = CliRunner().invoke(app, words)
    assert made.exit_code == 0, made.output
    assert "its pay is held until it is 100.00 USD, and becomes the stake" in made.stdout
    assert settings.read(home).probation
