"""Types commands in a shell in a pseudo-terminal, as a person would, and reads what it shows.

The shell is bash with a prompt of its own, so that the end of a command and its exit status are
seen on the screen. Nothing is injected: passphrases and answers are typed when their prompt
appears.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pexpect  # type: ignore[import-untyped]  # it has no types

BOUND_SECONDS = 120.0
KILLED_SECONDS = 1.0  # from a signal until the process is gone
COLUMNS, LINES = 160, 50
PROMPT = re.compile(r"ended-with:(\d+)> ")
CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")
SHELL = ["--norc", "--noprofile", "--noediting", "-i"]


class Terminal:
    """One terminal window in a folder.

    `type` runs a command to its end. `start` leaves a daemon running in the window, and `press`
    sends it a key. Every wait ends after `bound_seconds` with all that the screen showed.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        bound_seconds: float = BOUND_SECONDS,
    ) -> None:
        self.bound_seconds = bound_seconds
        self._child = pexpect.spawn(
            "bash",
            SHELL,
            cwd=str(folder),
            env={**plain_environment(), **(environment or {}), "PS1": "ended-with:$?> "},
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(LINES, COLUMNS),
            timeout=bound_seconds,
        )
        self._child.ptyproc.delayafterterminate = KILLED_SECONDS  # a busy machine reaps slowly
        self._until_prompt("the shell", {})

    def type(self, line: str, answers: Mapping[str, str] | None = None, *, status: int = 0) -> str:
        """Types a command and returns what it showed. Its exit status must be `status`.

        `answers` maps a part of each question to the line that is typed when it appears.
        """
        self._send(line)
        shown, ended = self._until_prompt(line, answers or {})
        assert ended == status, f"{line!r} ended with {ended}, not {status}:\n{shown}"
        for answer in (answers or {}).values():
            assert len(answer) < 8 or answer not in shown, f"{line!r} shows what was typed secretly"
        return shown

    def start(self, line: str, phrase: str, answers: Mapping[str, str] | None = None) -> str:
        """Types a command that goes on, and returns what it showed until `phrase`."""
        self._send(line)
        return self._answering(line, [re.escape(phrase)], answers or {})[0]

    def until(self, phrase: str) -> str:
        """Returns what the running command shows until `phrase`."""
        return self._answering("waiting", [re.escape(phrase)], {})[0]

    def press(self, key: str = "c", *, status: int = 0) -> str:
        """Presses Ctrl and a key, and returns what the command showed until it ended."""
        self._child.sendcontrol(key)
        shown, ended = self._until_prompt(f"Ctrl-{key}", {})
        assert ended == status, f"Ctrl-{key} ended with {ended}, not {status}:\n{shown}"
        return shown

    def kill(self) -> None:
        """Kills the command that runs in the window (SIGKILL), as a machine without memory does."""
        group = os.tcgetpgrp(self._child.child_fd)
        assert group != self._child.pid, "a command runs in the window"
        os.killpg(group, signal.SIGKILL)
        self._until_prompt("kill -9", {})

    def close(self) -> None:
        """Closes the window. What still runs in it gets SIGHUP, then SIGKILL."""
        if self._child.isalive():
            group = os.tcgetpgrp(self._child.child_fd)
            if group != self._child.pid:
                os.killpg(group, signal.SIGTERM)
        self._child.close(force=True)

    def _send(self, line: str) -> None:
        """Types a line, and waits until the terminal has shown it."""
        self._child.sendline(line)
        self._child.expect_exact(f"{line}\r\n")

    def _until_prompt(self, line: str, answers: Mapping[str, str]) -> tuple[str, int]:
        shown, ended = self._answering(line, [PROMPT.pattern], answers)
        return shown, int(ended)

    def _answering(self, line: str, ends: list[str], answers: Mapping[str, str]) -> tuple[str, str]:
        """Returns (what was shown, the group of the end's pattern), and types each answer when its
        question appears.
        """
        limit, shown = time.monotonic() + self.bound_seconds, ""
        patterns = [*ends, *(re.escape(question) for question in answers), pexpect.EOF]
        while True:
            left = max(0.1, limit - time.monotonic())
            try:
                found = self._child.expect(patterns, timeout=left)
            except pexpect.TIMEOUT:
                shown += readable(self._child.before or "")
                raise AssertionError(f"{line!r} did not go on:\n{shown}") from None
            end = found < len(ends)
            after = self._child.after if isinstance(self._child.after, str) else ""
            shown += readable(self._child.before if end else self._child.before + after)
            if end:
                match = self._child.match
                return shown, match[1] if match.re.groups else ""
            assert found < len(patterns) - 1, f"{line!r}: the terminal was closed:\n{shown}"
            self._child.sendline(list(answers.values())[found - len(ends)])


@contextmanager
def terminal(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Opens a terminal window in a folder, and closes it at the end."""
    window = Terminal(folder, environment)
    try:
        yield window
    finally:
        window.close()


def plain_environment() -> dict[str, str]:
    """Returns the environment of a person who has set nothing of this project."""
    dropped = ("QUORATE_", "VIRTUAL_ENV", "PYTHONPATH", "XDG_", "PROMPT_COMMAND", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}


def readable(text: str) -> str:
    """Returns what a person reads: without colours, and only the last state of a line that was
    drawn again.
    """
    lines = CONTROL.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)
