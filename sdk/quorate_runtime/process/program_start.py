"""What the commands of node and coordinator do at their start: find the home, set up the log."""

import logging
import os
import shlex
from pathlib import Path

from quorate_runtime.process import crash_points, logs


def program_home(given: Path | None, program: str) -> Path:
    """Returns a program's folder: the flag, else below $QUORATE_HOME, else in the XDG data folder.

    The path is absolute, because the container engine and its mounts need absolute paths.
    """
    if given is not None:
        return given.absolute()
    base = os.environ.get("QUORATE_HOME")
    if base:
        return Path(base).absolute() / program
    data = os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")
    return Path(data) / "quorate" / program


def home_flag(given: Path | None) -> str:
    """` --home FOLDER` for a command that the user can copy; empty if the flag was not given."""
    return "" if given is None else f" --home {shlex.quote(str(given))}"


def set_up_daemon(is_json: bool, log_file: Path | None) -> None:
    """Sets up the log and the crash point of a test. Raises OSError for a log file that cannot be
    written.
    """
    crash_points.configure(os.environ.get(crash_points.CRASH_VARIABLE, ""))
    logs.setup(is_json=is_json, file=log_file)
    # Without this, most of the log would be one line for each request.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def first_cause(error: BaseException) -> BaseException:
    """Returns the first error inside groups of errors. Each task group that an error passes wraps
    it once more.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
