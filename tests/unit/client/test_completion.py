"""Tests shell completion, and the extra that a missing package names."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.app import explain_missing
from quorate.cli.main import run_main
from quorate.client.base.client_ledger import Ledger


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
