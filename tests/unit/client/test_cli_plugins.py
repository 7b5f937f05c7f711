"""Tests that a command group without its packages names the remedy, whatever follows the group's
name.
"""

from importlib.metadata import EntryPoint

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli import plugins
from quorate.cli.main import run_main
from quorate_runtime.version import version_number


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
