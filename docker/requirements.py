"""Prints what an extra of pyproject.toml requires, one requirement a line, so that an image's
layer of dependencies outlives our changes.

python3 requirements.py pyproject.toml node
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def required(extra: str) -> list[str]:
    """The extra's own, and those of the extras that it names."""
    found: list[str] = []
    for line in EXTRAS[extra]:
        inner = re.fullmatch(r"quorate\[([a-z0-9,]+)\]", line)
        found += (
            [each for name in inner[1].split(",") for each in required(name)] if inner else [line]
        )
    return found


sys.stdout.writelines(
    f"{line}\n" for line in dict.fromkeys([*PROJECT["dependencies"], *required(sys.argv[2])])
)
