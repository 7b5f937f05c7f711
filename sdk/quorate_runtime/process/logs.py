"""Log lines for machines (JSON) or people, each with the lease and job it is about, and without
secrets.

Every module logs through `logging.getLogger(__name__)`; the program's cli calls `setup` once.
Ids are carried by context variables, so that everything that happens on behalf of a lease names
it, tasks started for it included.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

LINE_CHARS_MAX = 8192
FILE_BYTES = 16 << 20
FILES_KEPT = 5
REDACTED = "[redacted]"
SECRET_WORDS = "passphrase|password|passwd|secret|token|authorization|api[_-]?key|private[_-]?key|mnemonic|salt"
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
    """Lines inside the block, and in tasks begun there, name this lease and job (hex ids)."""
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
    """Sends all log lines to a stream (standard error when None), or to a file instead,
    replacing what was set up before.

    The file is turned over at FILE_BYTES, and FILES_KEPT older ones stay: `node.log.1` is the
    newest of them. OSError when it cannot be written.
    """
    handler = logging.StreamHandler(stream or sys.stderr) if file is None else _rotating(file)
    handler.setFormatter(JsonFormatter() if is_json else HumanFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _rotating(path: Path) -> logging.Handler:
    """Readable by its owner alone, the older ones too: lines name jobs and accounts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _PrivateRotation(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")


class _PrivateRotation(RotatingFileHandler):
    """The library opens the file that follows with the process's umask."""

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(
            open(self.baseFilename, "ab", opener=_private),
            encoding=self.encoding,
            errors=self.errors,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def redact(text: str) -> str:
    """Text without what looks like a secret: `password=...`, bearer tokens, passwords in URLs.
    Hashes are left alone.
    """
    return _USER_INFO.sub(
        rf"\1{REDACTED}@", _BEARER.sub(rf"\1{REDACTED}", _SECRET_TEXT.sub(rf"\1{REDACTED}", text))
    )


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, lease, job, the call's `extra`
    fields, error.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
        """The line or lines."""
        # Ids shortened: people compare beginnings. Line breaks of strangers must not look like
        # lines of ours.
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
