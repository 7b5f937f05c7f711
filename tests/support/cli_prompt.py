"""Runs commands of the command line in this process.

A process for each command would take a second or two to load the program.
"""

import contextlib
import io
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from quorate.cli.main import run_main


def typed(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Runs `quorate WORDS`; returns the exit status and the text of both output streams.

    Raises the exception for which the program would print a stack trace. Only one command may run
    at a time.
    """
    said = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # as in a new process; a daemon configures its own log
    with contextlib.ExitStack() as stack:
        stack.callback(root.setLevel, level)
        stack.callback(root.handlers.__setitem__, slice(None), handlers)
        if folder is not None:
            stack.enter_context(contextlib.chdir(folder))
        if environment is not None:
            stack.enter_context(patch.dict(os.environ, environment, clear=True))
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(said))
        return run_main(list(words)), said.getvalue()


def password_file(folder: Path, passphrase: str = "secret") -> Path:
    """Writes a password file that only its owner can read."""
    path = folder / "password"
    path.write_text(passphrase + "\n")
    path.chmod(0o600)
    return path
