"""On a machine that lacks something, `.ci/make-venv` names it and the remedy.

Every make target runs this script; it writes nothing to stdout.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("bash", "dirname", "grep", "tail", "touch", "rm")

OLD_PYTHON = """#!/bin/bash
[[ "$1" == --version ]] && echo "Python 3.9.2" && exit 0
exit 1
"""
# Replaces a Python 3.11 whose venv cannot be made, or whose pip fails with the given words.
PYTHON = """#!/bin/bash
case "$*" in
    *ensurepip*) exit {has_venv} ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"-m pip"*) echo "{pip_says}" >&2; exit {pip_exits} ;;
    --version) echo "Python 3.11.9" ;;
esac
"""


def broken(has_venv: int, pip_says: str, pip_exits: int = 1) -> str:
    return PYTHON.format(has_venv=has_venv, pip_says=pip_says, pip_exits=pip_exits)


def make_venv(folder: Path, python: str, extra: str = "dev") -> subprocess.CompletedProcess[str]:
    """Runs the script in a copy of the files that it reads.

    PATH holds only `python` and a few basic programs.
    """
    programs = folder / "programs"
    programs.mkdir()
    for name in (*TOOLS, "mkdir", "cp"):
        found = shutil.which(name)
        assert found, name
        (programs / name).symlink_to(found)
    (programs / "python3").write_text(python)
    (programs / "python3").chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "make-venv", folder / ".ci")
    environment = {"PATH": str(programs), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [folder / ".ci" / "make-venv", extra],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "named", "remedy"),
    [
        (
            OLD_PYTHON,
            "no Python 3.11, 3.12 or 3.13 here (python3 is: Python 3.9.2)",
            "apt-get install python3 python3-venv",
        ),
        (broken(has_venv=1, pip_says=""), "has no venv module", "apt-get install python3-venv"),
        (
            broken(has_venv=0, pip_says="error: command 'gcc' failed: No such file"),
            "a C compiler",
            "apt-get install gcc",
        ),
        (
            broken(has_venv=0, pip_says="fatal error: Python.h: No such file or directory"),
            "headers of Python",
            "python3-dev",
        ),
        (
            broken(has_venv=0, pip_says="Failed: NewConnectionError: Errno 111"),
            "index does not answer",
            "proxy",
        ),
        (
            broken(has_venv=0, pip_says="something else"),
            "all of its output is in .venv/install.log",
            "something else",
        ),
    ],
    ids=["old-python", "no-venv", "no-compiler", "no-headers", "no-index", "other"],
)
def test_what_is_missing_is_named_with_its_remedy(
    tmp_path: Path, python: str, named: str, remedy: str
) -> None:
    done = make_venv(tmp_path, python)
    assert done.returncode == 1
    assert done.stdout == ""
    assert named in done.stderr and remedy in done.stderr
    assert not (tmp_path / ".venv" / "installed-dev").exists()


def test_devnet_is_installed_without_libp2p_where_it_cannot_be_compiled(tmp_path: Path) -> None:
    done = make_venv(tmp_path, broken(has_venv=0, pip_says="", pip_exits=0), "devnet")
    assert done.returncode == 0 and done.stdout == ""
    assert "goes on without libp2p" in done.stderr
    assert "apt-get install gcc python3-dev libgmp-dev" in done.stderr
    assert (tmp_path / ".venv" / "installed-devnet").exists()
