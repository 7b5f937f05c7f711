"""Writes a program's output to a file of bounded size."""

import os
from pathlib import Path

LOG_BYTES_MAX = 1 << 20
READS_MAX = 64
LOG_CUT = b"\n[log cut at 1 MiB]\n"


class CappedLog:
    """Copies output to a file up to the cap, then reads and drops it.

    The program never blocks on a full pipe.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.written = 0

    def copy(self, pipe: int) -> bool:
        """Reads what the pipe holds now; False when the pipe is closed."""
        for _ in range(READS_MAX):
            try:
                chunk = os.read(pipe, 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            if self.written <= LOG_BYTES_MAX:
                self.file.write(chunk[: LOG_BYTES_MAX - self.written])
                self.written += len(chunk)
                if self.written > LOG_BYTES_MAX:
                    self.file.write(LOG_CUT)
        return True
