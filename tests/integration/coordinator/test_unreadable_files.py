"""Tests archive and documents while SQLite cannot read them.

Effects get `Unavailable` and wait, and the API answers 503.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from quorate_coordinator.base.storage_sizes import Keeping
from quorate_coordinator.storage.archive import BEFORE_ALL_RUNS
from quorate_coordinator.storage.archive_file import FileArchive
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH


def test_an_unreadable_archive_makes_effects_wait(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "archive.sqlite")
    asks: list[Callable[[], object]] = [
        lambda: archive.run(ZERO_HASH),
        lambda: archive.runs_of(ZERO_ADDRESS, 1),
        lambda: archive.runs_after(ZERO_ADDRESS, 0),
        lambda: archive.newest_line(ZERO_ADDRESS),
        lambda: archive.since(0, 1),
        lambda: archive.readers(ZERO_HASH),
        archive.count,
        lambda: archive.ended_before(1, BEFORE_ALL_RUNS, 1),
        lambda: archive.forgotten_outputs(ZERO_HASH, 1),
    ]
    for connection in archive.file._connections():
        connection.set_progress_handler(
            lambda: 1, 1
        )  # SQLite aborts every statement, as after a failed read
    for ask in asks:
        with pytest.raises(Unavailable, match="archive.sqlite cannot be read"):
            ask()
    for connection in archive.file._connections():
        connection.set_progress_handler(None, 1)
    assert [ask() for ask in asks] == [None, [], [], 0, [], None, 0, [], []]
    archive.close()


async def test_an_unreadable_document_file_makes_effects_wait(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", Keeping(1 << 30, 1))
    file.file._connections()[1].set_progress_handler(lambda: 1, 1)
    with pytest.raises(Unavailable, match="documents.sqlite cannot be read"):
        await file.put(b"a receipt")
    file.file._connections()[1].set_progress_handler(None, 1)
    await file.put(b"a receipt")
    file.close()
