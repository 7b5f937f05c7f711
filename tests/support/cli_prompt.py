"""Commands typed at a prompt, run in this process: each of its own would load the program for a
second or two.
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
    """Exit status of `quorate WORDS`, and what stood on both streams. What it would show a trace
    for is raised. One at a time.
    """
    said = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # as in a new process; a daemon sets its own log up
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
