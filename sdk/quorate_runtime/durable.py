"""Opens SQLite files that must not be lost: makes a new one in one step, and refuses a damaged one.

SQLite takes an empty file for a new one. It reads a truncated file without an error until it needs
the missing part. Both would silently lose data that was acknowledged. (The journal also has its own
checksums; see `journal_files`.)
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.files import is_full, private_file, sync_folder

# A daemon has a dozen connections, and each would keep 2 MB of pages for ever. The system's cache
# holds the pages anyway.
SMALL_CACHE = "PRAGMA cache_size = -128"  # KiB

# Errors that a lock of another process, the disk or file rights cause for a file that is whole.
_WORLD = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
}
RETRY_SECONDS = 5.0
MAY_BE_WHOLE = (
    "it may be whole: check which other process has it open, the room on the disk, its rights, "
    "and ulimit -n"
)


class FileDamaged(Exception):
    """The file is damaged. The message names it and the remedy."""


class OtherVersion(FileDamaged):
    """The file is whole, but another version of Quorate wrote it."""


def make_whole(path: Path, schema: str) -> None:
    """Makes the file if it is missing. It is made under another name and then linked, so a crash
    leaves no file without tables.
    """
    if path.exists():
        return
    if path.with_name(path.name + "-wal").exists():
        raise damaged(path, "it is gone, but its WAL is there")
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        try:
            private_file(draft)
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN; {schema} COMMIT;")
        except sqlite3.DatabaseError as error:
            raise trouble(path, error) from error
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def open_whole(
    path: Path, versions: Sequence[str], timeout: float = 5.0, first: int = 1
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Opens a large file, or makes it: a writer, whose commits are durable, and a reader.

    `versions` holds the statements that make each version from the one before; the first of them
    makes version `first`. Raises `OtherVersion` for a file of an older or a newer version,
    `FileDamaged` for a file that is not whole, and `Unavailable` while it cannot be used.
    """
    make_whole(path, f"{versions[0]} PRAGMA user_version = {first};")
    opened: list[sqlite3.Connection] = []
    try:
        for _ in range(2):
            opened.append(sqlite3.connect(path, timeout, check_same_thread=False))
        writer, reader = opened
        check_whole(path, writer, is_large=True)
        for connection in opened:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(SMALL_CACHE)
        _migrate(path, writer, versions, first)
    except sqlite3.DatabaseError as error:
        _close(opened)
        raise trouble(path, error) from error
    except (FileDamaged, Unavailable):
        _close(opened)
        raise
    return writer, reader


def used_bytes(connection: sqlite3.Connection) -> int:
    """Returns the bytes of the file's pages that are in use. SQLite counts them, so they cannot
    differ from the file as a sum of our own could.
    """
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def older(file: Path, home: Path, found: int, known: int) -> str:
    return (
        f"{file} was written by an older Quorate (format {found}; this version reads {known}). "
        f"Finish with that version, or move {home} away and run `init` again."
    )


def newer(file: Path, found: int, known: int) -> str:
    return (
        f"{file} was written by a newer Quorate (format {found}; this version reads format "
        f"{known}). Start that version."
    )


def _migrate(
    path: Path, connection: sqlite3.Connection, versions: Sequence[str], first: int
) -> None:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    last = first + len(versions) - 1
    if found > last:
        raise OtherVersion(newer(path, found, last))
    if found < first and first > 1:
        raise OtherVersion(older(path, path.parent, found, last))
    for version, tables in enumerate(versions, first):
        if found < version:
            connection.executescript(f"BEGIN; {tables} PRAGMA user_version = {version}; COMMIT;")


def _close(connections: Sequence[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()


def check_whole(path: Path, connection: sqlite3.Connection, is_large: bool = False) -> None:
    """Raises `FileDamaged` for a truncated file, and for a broken structure. For a large file it
    checks only the length.
    """
    try:
        problem = _length_problem(path, connection) or (
            "" if is_large else _structure_problem(connection)
        )
    except sqlite3.DatabaseError as error:
        raise trouble(path, error) from error
    if problem:
        raise damaged(path, problem)


def _length_problem(path: Path, connection: sqlite3.Connection) -> str:
    """Says if the file is shorter than its page count. The WAL may hold pages past its end."""
    pages, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "page_size")
    )
    if not pages:
        return "it is empty"
    wal, found = path.with_name(path.name + "-wal"), path.stat().st_size
    has_wal = wal.exists() and wal.stat().st_size > 0
    return f"it has {found} bytes of {pages * size}" if found < pages * size and not has_wal else ""


def _structure_problem(connection: sqlite3.Connection) -> str:
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0]).replace("\n", " ")
    return "" if found == "ok" else found


def trouble(path: Path, error: sqlite3.DatabaseError) -> FileDamaged | Unavailable:
    """Returns the exception to raise for an error of SQLite. A backup does not help against a lock
    or a full disk, so these are `Unavailable`, not damage.
    """
    if is_outside_cause(error):
        return Unavailable(f"{path}: {error}; {remedy(path)}", RETRY_SECONDS)
    return damaged(path, str(error))


def remedy(path: Path) -> str:
    folder = path.absolute().parent
    if is_full(folder):
        return f"the disk is full, the file is whole: check `df -h {folder}` and free some space"
    return MAY_BE_WHOLE


def is_outside_cause(error: sqlite3.Error) -> bool:
    """Returns whether the error came from outside the file, so that the file may be whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _WORLD


def damaged(path: Path, what: str) -> FileDamaged:
    return FileDamaged(
        f"{path}: {what}. Nothing was changed. Restore the file from a backup; "
        f"without one, save what can still be read with: sqlite3 {path} .recover"
    )
