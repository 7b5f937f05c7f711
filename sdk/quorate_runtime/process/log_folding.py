"""Folds log lines that repeat: at most one a minute for one trouble, with the count of the others.

`LogThrottle` serves one loop whose failures are known. This filter catches every other loop.
"""

import logging
import re
from dataclasses import dataclass

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
        """Returns whether to write the line. Adds to it how many were folded before."""
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
