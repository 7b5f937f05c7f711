"""Log lines as JSON or for people, each with its lease and job, and without secrets.

Every module logs through `logging.getLogger(__name__)`; the program's cli calls `setup` once.
Context variables carry the ids, so that all code that runs for a lease names it, including tasks
that it starts.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

# Folds log lines that repeat: at most one a minute for one trouble, with the count of the others.
#
# `LogThrottle` serves one loop whose failures are known. This filter catches every other loop.

FOLD_SECONDS = 60.0
LINES_MAX = 512  # lines remembered; beyond this all are forgotten
_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class _Line:
    shown_at: float  # Unix seconds
    folded: int = 0


class FoldRepeats(logging.Filter):
    """Passes a line on unless the same one was passed on less than a minute ago.

    Warnings count as the same if they differ only in numbers; other lines if they differ in
    nothing. Errors are never folded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[tuple[str, int, str], _Line] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR or record.exc_info:
            return True
        text = record.getMessage()
        same = _DIGITS.sub("#", text) if record.levelno >= logging.WARNING else text
        key = (record.name, record.levelno, same)
        line = self._lines.get(key)
        if line is not None and 0 <= record.created - line.shown_at < FOLD_SECONDS:
            line.folded += 1
            return False
        if line is not None and line.folded:
            record.msg, record.args = f"{text} ({line.folded} more times before)", None
        if len(self._lines) >= LINES_MAX:
            self._lines.clear()
        self._lines[key] = _Line(record.created)
        return True


LINE_CHARS_MAX = 8192
FILE_BYTES = 16 << 20
FILES_KEPT = 5
REDACTED = "[redacted]"
SECRET_WORDS = (
    "passphrase|password|passwd|secret|token|authorization"
    "|api[_-]?key|private[_-]?key|mnemonic|salt"
)
_SECRET_NAME = re.compile(SECRET_WORDS, re.IGNORECASE)
_SECRET_TEXT = re.compile(
    rf"((?:{SECRET_WORDS})[\"']?\s*[=:]\s*)((?:bearer\s+)?[\"']?[^\s\"',;}}]+)", re.IGNORECASE
)
_BEARER = re.compile(r"(bearer\s+)[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_USER_INFO = re.compile(r"(\w+://[^\s:/@]+:)[^\s@/]+@")

_lease: ContextVar[str] = ContextVar("lease", default="")
_job: ContextVar[str] = ContextVar("job", default="")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def about(*, lease: str = "", job: str = "") -> Iterator[None]:
    """Inside the block, and in tasks started there, log lines name this lease and job (hex ids)."""
    tokens = [
        (variable, variable.set(value))
        for variable, value in ((_lease, lease), (_job, job))
        if value
    ]
    try:
        yield
    finally:
        for variable, token in reversed(tokens):
            variable.reset(token)


def setup(
    is_json: bool, level: str = "INFO", stream: TextIO | None = None, file: Path | None = None
) -> None:
    """Sends all log lines to a stream (None: standard error) or to a file.

    It replaces an earlier set-up. A line that repeats is written once a minute, with a count.

    The log starts a new file at FILE_BYTES, and FILES_KEPT older files stay: `node.log.1` is the
    newest of them. Raises OSError if the file cannot be written.
    """
    handler = logging.StreamHandler(stream or sys.stderr) if file is None else _rotating(file)
    handler.setFormatter(JsonFormatter() if is_json else HumanFormatter())
    handler.addFilter(FoldRepeats())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _rotating(path: Path) -> logging.Handler:
    """Returns a handler whose files only their owner can read, because lines name jobs and
    accounts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return _PrivateRotation(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")


class _PrivateRotation(RotatingFileHandler):
    """Opens each new file with mode 0600; the library uses the process's umask."""

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(
            open(self.baseFilename, "ab", opener=_private),
            encoding=self.encoding,
            errors=self.errors,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def redact(text: str) -> str:
    """Returns the text without secrets: `password=...`, bearer tokens, passwords in URLs. Hashes
    stay.
    """
    return _USER_INFO.sub(
        rf"\1{REDACTED}@", _BEARER.sub(rf"\1{REDACTED}", _SECRET_TEXT.sub(rf"\1{REDACTED}", text))
    )


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Fields: time, level, logger, message, lease, job, the call's
    `extra` fields, error.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage())[:LINE_CHARS_MAX],
            **_ids(),
            **{name: redact(str(value))[:LINE_CHARS_MAX] for name, value in _extra(record).items()},
        }
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info))[:LINE_CHARS_MAX]
        return json.dumps(line)


class HumanFormatter(logging.Formatter):
    """`time level logger: message lease=... name=value`, errors on the lines below."""

    def format(self, record: logging.LogRecord) -> str:
        # Ids are shortened, because people compare beginnings. Line breaks from strangers must not
        # look like new log lines.
        ids = " ".join(f"{name}={value[:10]}" for name, value in _ids().items())
        extra = " ".join(f"{name}={redact(str(value))}" for name, value in _extra(record).items())
        message = redact(record.getMessage()).replace("\n", "\\n")[:LINE_CHARS_MAX]
        parts = [
            f"{_time(record)} {record.levelname.lower():8} {record.name}: {message}",
            ids,
            extra.replace("\n", "\\n"),
        ]
        text = " ".join(part for part in parts if part)
        return (
            f"{text}\n{redact(self.formatException(record.exc_info))}" if record.exc_info else text
        )


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _ids() -> dict[str, str]:
    return {
        name: variable.get()
        for name, variable in (("lease", _lease), ("job", _job))
        if variable.get()
    }


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: REDACTED if _SECRET_NAME.search(name) else value
        for name, value in vars(record).items()
        if name not in _STANDARD
    }
