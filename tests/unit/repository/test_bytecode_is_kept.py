"""Programs write the bytecode that they compile, also where the environment forbids it.

A market starts some ten programs. Without bytecode each of them compiles a thousand modules again,
which doubles the CPU of its start.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAME = "PYTHONDONTWRITEBYTECODE"


def test_tests_and_the_programs_that_they_start_write_bytecode() -> None:
    asked = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.check_output(asked, text=True).strip() == "False"
    assert not sys.dont_write_bytecode


def test_make_passes_no_ban_of_bytecode_on() -> None:
    rule = f'shown: ; @echo "[$${NAME}]"'
    make = ["make", "--silent", "--directory", str(ROOT), f"--eval={rule}", "shown"]
    told = subprocess.check_output(make, text=True, env=os.environ | {NAME: "1"})
    assert told.strip() == "[]"
