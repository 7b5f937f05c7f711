"""A large SQLite file that a daemon can run without.

While the file cannot be used, calls that need it raise `Unavailable` with the reason, and effects
wait.

One connection writes, from any thread. Another one reads, from the event loop: a look-up takes some
ten microseconds.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.durable import FileDamaged, OtherVersion, damaged, open_whole, used_bytes
from quorate_runtime.files import is_full

log = logging.getLogger(__name__)
RETRY_SECONDS = 5.0
OPENING = "opening"

# Errors that mean damaged contents: a page, the header, or missing tables. All other errors may
# pass.
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


class OptionalFile:
    """Two connections to the file, or the reason why there are none. It tries again to open the
    file, so the operator may put a backup in its place.
    """

    def __init__(self, path: Path, versions: Sequence[str], gone: str = "", first: int = 1) -> None:
        """Opens or makes the file. `versions` and `first` are those of `open_whole`.

        If `gone` is not empty, the file existed before. Then a missing file is not made, and `gone`
        is the remedy to report. Raises only `OtherVersion`, for a file of another version.
        """
        self.path = path
        self._versions, self._gone, self._first = versions, gone, first
        self._lock = threading.RLock()
        self._opened: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self._file = 0  # the inode of the open file
        self._damage = ""  # stays until the program is started again
        self._troubles: dict[
            str, str
        ] = {}  # by what could not be done; it passes when that works again
        self._next_try = 0.0
        try:
            self._connections()
        except Unavailable as error:
            # Calls that need the file raise it, and try again.
            log.error("the daemon goes on without a file: %s", error)

    @property
    def problem(self) -> str:
        return self._damage or next(iter(self._troubles.values()), "")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Gives the reader, for the event loop's thread. Raises Unavailable while the file cannot
        be read.
        """
        _, reader = self._connections()
        with self._telling("cannot be read"):
            yield reader

    @contextmanager
    def writing(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Gives the writer to one caller at a time, in a transaction that is durable at the end.

        `doing` names the failure in the message. Raises Unavailable while the file cannot be
        written.
        """
        with self._lock:
            writer, _ = self._connections()
            self._must_be_there(doing)
            with self._telling(doing), writer:
                yield writer

    def used_bytes(self) -> int:
        with self.reading() as reader:
            return used_bytes(reader)

    def damaged(self, what: str) -> Unavailable:
        self._damage = str(damaged(self.path, what))
        return Unavailable(self._damage, RETRY_SECONDS)

    def close(self) -> None:
        with self._lock:
            for connection in self._opened or ():
                connection.close()

    def _connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._opened is None:
                self._open()
            assert self._opened is not None, "opened, or raised"
            return self._opened

    def _open(self) -> None:
        now = time.monotonic()
        if self.problem and now < self._next_try:
            raise Unavailable(self.problem, RETRY_SECONDS)
        self._next_try = now + RETRY_SECONDS
        if self._gone and not self.path.exists():
            raise self._told(
                OPENING, f"{self.path}: it is gone, and it was there before. {self._gone}"
            )
        try:
            self._opened = open_whole(self.path, self._versions, first=self._first)
        except OtherVersion:
            raise
        except (FileDamaged, Unavailable, OSError) as error:
            raise self._told(OPENING, str(error)) from error
        self._file = self.path.stat().st_ino
        if self._troubles.pop(OPENING, ""):
            log.warning("%s can be used again", self.path)

    def _told(self, doing: str, text: str) -> Unavailable:
        self._troubles[doing] = text
        return Unavailable(text, RETRY_SECONDS)

    def _must_be_there(self, doing: str) -> None:
        """Checks that the open file is still at its path. If somebody moved or replaced the file,
        what a program writes into it would be lost at the next start.
        """
        try:
            found = os.stat(self.path).st_ino
        except OSError:
            found = 0  # the error below says it
        if found != self._file:
            what = (
                "it was taken away or replaced while it was open. Stop this program, put the "
                "right file there, start it again"
            )
            raise self._told(doing, f"{self.path}: {what}")

    def _more(self) -> str:
        folder = self.path.absolute().parent
        return f"; check `df -h {folder}` and free some space" if is_full(folder) else ""

    @contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise  # a bug of ours, not trouble with the file
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                raise self.damaged(str(error)) from error
            raise self._told(doing, f"{self.path} {doing}: {error}{self._more()}") from error
        self._troubles.pop(doing, None)
