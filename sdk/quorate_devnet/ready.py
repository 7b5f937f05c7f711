"""How a devnet process tells its parent that it answers."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def write_ready(path: Path | None, facts: Mapping[str, str]) -> None:
    """Writes `facts` as one JSON object, whole or not at all; without a path, prints it."""
    text = json.dumps(dict(facts), sort_keys=True)
    if path is None:
        print(text, flush=True)  # noqa: T201  a program's own output
        return
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n")
    os.replace(part, path)
