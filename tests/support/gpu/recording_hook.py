"""A stand-in for NVIDIA's runtime hook, which records what an engine asks it for.

It gives a container nothing. So containers with GPUs can be started on a machine without any.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

HOOK = "nvidia-container-runtime-hook"
SCRIPT = """#!{python}
import json, pathlib, sys
state = json.load(sys.stdin)
config = json.loads((pathlib.Path(state["bundle"]) / "config.json").read_text())
with open({record!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], config["process"]["env"]]) + chr(10))
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the hook: its arguments, and the container's variables for it."""

    arguments: tuple[str, ...]
    variables: dict[str, str]


class RecordingHook:
    """The stand-in, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._record = folder / "programs", folder / "asked"
        self.folder.mkdir()
        program = self.folder / HOOK
        program.write_text(SCRIPT.format(python=sys.executable, record=str(self._record)))
        program.chmod(0o755)

    def asked(self) -> list[Asked]:
        """All calls so far, in order. It forgets them."""
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        self._record.unlink(missing_ok=True)
        return [_asked(*json.loads(line)) for line in lines]


def _asked(arguments: list[str], env: list[str]) -> Asked:
    pairs = (item.partition("=")[::2] for item in env)
    found = {name: value for name, value in pairs if name.startswith("NVIDIA_")}
    return Asked(tuple(arguments), found)
