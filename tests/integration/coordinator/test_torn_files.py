"""Tests archive, record of sent transactions, and a client's ledger after a cut at any position.

The file is whole, or the program refuses it and names a remedy. With a torn WAL it holds what it
held at some earlier moment.
"""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quorate.base.errors import ProfileError
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.signed import Order
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Amount, Hash32
from quorate_runtime.chain.send_records import Attempt, SendRecord, SendRecords
from quorate_runtime.durable import FileDamaged
from support.journal.torn_files import damages, files_of, restore
from support.markets.archiving_market import archived_runs
from support.messages import a_spec, an_order

COUNT = 24
STRIDE = 4091
COORDINATOR, CLIENT = Address(b"\x11" * 20), Address(b"\x22" * 20)


@dataclass(frozen=True, slots=True)
class Book:
    """One kind of file.

    `fill` writes the n-th item in several transactions. `read` returns all that matters.
    """

    name: str
    open: Callable[[Path], Any]
    fill: Callable[[Any, int], Iterator[None]]
    read: Callable[[Any], object]
    damaged: type[Exception]


def order(number: int) -> Order:
    return an_order(CLIENT, COORDINATOR, a_spec("job"), number, 1, budget=Amount(1000))


def fill_ledger(ledger: Ledger, number: int) -> Iterator[None]:
    job_id = Hash32(number.to_bytes(32, "big"))
    ledger.record(
        OrderRecord(
            job_id,
            f"run-{number}",
            order(number),
            b"spec " * 100,
            b"session " * 20,
            number,
            None,
            None,
        )
    )
    yield
    if number % 3:
        ledger.settle(job_id, Amount(100 + number))
        yield
    if number % 5 == 0:
        ledger.draft_voucher(CLIENT, COORDINATOR, Amount(0), Amount(10**9), Amount(10**9))
        yield


def read_ledger(ledger: Ledger) -> object:
    return (
        ledger.entries(COORDINATOR),
        ledger.debt(COORDINATOR),
        ledger.last_voucher(CLIENT, COORDINATOR),
    )


def fill_outbox(outbox: SendRecords, number: int) -> Iterator[None]:
    attempt = Attempt(Hash32(number.to_bytes(32, "big")), b"raw %d " % number * 60, 2, 1)
    outbox.add(
        SendRecord(
            f"payroll-{number}", number, COORDINATOR, b"data %d " % number * 40, 0, 1, (attempt,)
        )
    )
    yield
    outbox.mark(attempt, taken=True)
    yield


def read_outbox(outbox: SendRecords) -> object:
    return outbox.unsettled(10**6), outbox.nonces(0)


BOOKS = {
    "ledger": Book("ledger.sqlite", Ledger, fill_ledger, read_ledger, ProfileError),
    "sends": Book(
        "transactions.sqlite",
        lambda path: SendRecords(path, b"chain", COORDINATOR),
        fill_outbox,
        read_outbox,
        FileDamaged,
    ),
}


def archive_of(runs: list[ArchivedRun]) -> Book:
    def fill(archive: FileArchive, number: int) -> Iterator[None]:
        archive.keep(runs[number % len(runs) :][:1])
        yield

    def read(archive: FileArchive) -> object:
        return archive.count(), [archive.run(run.run.job_id) for run in runs]

    return Book("archive.sqlite", FileArchive, fill, read, Unavailable)


@pytest.fixture(scope="module")
def runs() -> list[ArchivedRun]:
    return archived_runs(6)


def document(number: int) -> bytes:
    return random.Random(number).randbytes(3000)


def fill_documents(opened: DocumentFile, number: int) -> Iterator[None]:
    asyncio.run(opened.put(document(number)))
    yield


def read_documents(opened: DocumentFile) -> object:
    return [opened.get(sha256(document(number))) for number in range(COUNT)]


BOOKS["documents"] = Book(
    "documents.sqlite",
    lambda path: DocumentFile(path, Keeping(1 << 30, 180 * DAY_SECONDS)),
    fill_documents,
    read_documents,
    Unavailable,
)


@pytest.fixture(params=["archive", *BOOKS])
def book(request: pytest.FixtureRequest, runs: list[ArchivedRun]) -> Book:
    return BOOKS.get(request.param) or archive_of(runs)


def filled(book: Book, folder: Path) -> tuple[list[object], dict[str, bytes], dict[str, bytes]]:
    """Returns what could be read after each write, and the files before and after the last close.

    Before it there is a WAL.
    """
    folder.mkdir()
    opened, states = book.open(folder / book.name), []
    states.append(book.read(opened))
    for number in range(COUNT):
        for _ in book.fill(opened, number):
            states.append(book.read(opened))
    files = files_of(folder)
    opened.close()
    return states, files, files_of(folder)


def reread(book: Book, folder: Path) -> object:
    opened = book.open(folder / book.name)
    try:
        return book.read(opened)
    finally:
        opened.close()


def test_a_file_cut_anywhere_is_whole_or_refused_with_its_name(book: Book, tmp_path: Path) -> None:
    states, _, files = filled(book, tmp_path / "f")
    assert set(files) == {book.name}, "closing wrote the WAL back"
    refused = 0
    for what, data in damages(files[book.name], 5, STRIDE):
        if not what.startswith("cut"):
            continue  # only the journal has checksums of its contents; these files have none
        restore(tmp_path / "f", {book.name: data})
        with pytest.raises(book.damaged, match=f"{book.name}.*backup"):
            reread(book, tmp_path / "f")
        assert (tmp_path / "f" / book.name).read_bytes() == data, f"{what}: it was changed"
        refused += 1
    assert refused >= 100
    restore(tmp_path / "f", files)
    assert reread(book, tmp_path / "f") == states[-1]


def test_a_file_with_a_torn_wal_holds_an_earlier_moment(book: Book, tmp_path: Path) -> None:
    states, files, _ = filled(book, tmp_path / "f")
    wal, places = f"{book.name}-wal", set()
    for what, data in damages(files[wal], 6, STRIDE):
        restore(tmp_path / "f", files | {wal: data})
        found = reread(book, tmp_path / "f")
        moments = [place for place, state in enumerate(states) if state == found]
        assert moments, f"{what}: this was never so"
        places.update(moments[:1])
    assert 0 in places and len(places) > 3, places
    restore(tmp_path / "f", files)
    assert reread(book, tmp_path / "f") == states[-1]


def test_a_missing_file_beside_its_wal_is_refused(book: Book, tmp_path: Path) -> None:
    _, files, _ = filled(book, tmp_path / "f")
    restore(tmp_path / "f", {name: data for name, data in files.items() if name != book.name})
    with pytest.raises(book.damaged, match="its WAL is there"):
        reread(book, tmp_path / "f")


def test_two_processes_that_make_a_file_at_once_make_the_same_one(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from quorate_runtime.durable import "
        "make_whole\n"
        "for n in range(30): make_whole(Path(sys.argv[1]) / str(n), 'CREATE TABLE t (x);')"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == sorted(str(number) for number in range(30))
    for number in range(30):
        with closing(sqlite3.connect(tmp_path / str(number))) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
