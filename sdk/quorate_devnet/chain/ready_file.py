"""Small files of devnet processes: the ready file for the parent, and private files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from quorate_runtime.files import write_atomic


def write_ready(path: Path | None, facts: Mapping[str, str]) -> None:
    """Writes `facts` as one JSON object, whole or not at all. Without a path, prints it."""
    text = json.dumps(dict(facts), sort_keys=True)
    if path is None:
        print(text, flush=True)  # noqa: T201  a program's own output
        return
    write_atomic(path, f"{text}\n".encode())


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
