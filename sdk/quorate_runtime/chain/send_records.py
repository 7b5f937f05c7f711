"""Keeps on disk what one key has signed, before it is sent: purpose, nonce, transactions, outcome.

A purpose is a text that names one thing to do on chain. One SQLite file may serve several keys and
chains. Each row names its domain and its account. The domain is the chain id and the deployment, as
the caller knows them: if a node's word decided it, a lie would have each purpose paid twice. All
methods are synchronous; `AccountNonces` calls them in a thread.
"""

import sqlite3
import threading
from collections.abc import Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain.types import Receipt
from quorate_runtime.durable import SMALL_CACHE, check_whole, make_whole, trouble

RECEIPT_BYTES_MAX = 32 << 20
UNSETTLED_MAX = 256
MINED_MAX = 1_000
RETRY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sends (
    domain BLOB NOT NULL, account BLOB NOT NULL, purpose TEXT NOT NULL, nonce INTEGER NOT NULL,
    destination BLOB, data BLOB NOT NULL, value TEXT NOT NULL, gas INTEGER NOT NULL,
    receipt BLOB, reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (domain, account, purpose), UNIQUE (domain, account, nonce));
CREATE TABLE IF NOT EXISTS attempts (
    hash BLOB PRIMARY KEY, domain BLOB NOT NULL, account BLOB NOT NULL, nonce INTEGER NOT NULL,
    raw BLOB NOT NULL, fee_max TEXT NOT NULL, tip_max TEXT NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    cancels INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS attempts_nonce ON attempts (domain, account, nonce);
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One signed transaction for a nonce. A higher fee adds another attempt.

    `taken`: a node has said that it accepts it. `refused`: nodes refused it each time, so an honest
    node does not have it. `cancels`: it is an empty transfer to ourselves, which uses the nonce
    without doing the purpose.
    """

    hash: Hash32
    raw: bytes
    fee_max: int
    tip_max: int
    taken: bool = False
    refused: bool = False
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class SendRecord:
    """The record of one purpose: what is to be sent once, and the transactions signed for it
    (oldest attempt first).
    """

    purpose: str
    nonce: int
    to: Address | None
    data: bytes
    value: int
    gas: int
    attempts: tuple[Attempt, ...]
    receipt: Receipt | None = None
    reason: str = ""  # of a revert

    @property
    def is_refused(self) -> bool:
        return all(attempt.refused for attempt in self.attempts)


class SendRecords:
    """The records of one account on one chain."""

    def __init__(self, path: Path, domain: bytes, account: Address) -> None:
        """Opens or makes the file.

        Raises FileDamaged if it is not whole: if a purpose is missing, the program could do it a
        second time. Every method raises Unavailable while the disk or another process's lock keeps
        it from its file. Nothing has changed then.
        """
        self._path, self._key = path, (domain, bytes(account))
        self._lock = threading.Lock()
        self._db = _opened(path)

    def find(self, purpose: str) -> SendRecord | None:
        with self._using():
            rows = self._select("purpose = ?", purpose)
        return rows[0] if rows else None

    def unsettled(self, nonce_max: int) -> tuple[SendRecord, ...]:
        """Returns entries without an outcome whose nonce is at most `nonce_max`. The lowest comes
        first. There are at most `UNSETTLED_MAX`.
        """
        with self._using():
            return self._select(
                "receipt IS NULL AND nonce <= ? ORDER BY nonce LIMIT ?", nonce_max, UNSETTLED_MAX
            )

    def settled(self, first: int, last: int) -> tuple[SendRecord, ...]:
        with self._using():
            return self._select(
                "receipt IS NOT NULL AND nonce BETWEEN ? AND ? ORDER BY nonce LIMIT ?",
                first,
                last,
                UNSETTLED_MAX,
            )

    def nonces(self, first: int) -> frozenset[int]:
        with self._using():
            rows = self._db.execute(
                "SELECT nonce FROM sends WHERE domain=? AND account=? AND nonce>=?",
                (*self._key, first),
            )
            return frozenset(row[0] for row in rows)

    def next_nonce(self) -> int:
        with self._using():
            query = "SELECT coalesce(max(nonce) + 1, 0) FROM sends WHERE domain=? AND account=?"
            return int(self._db.execute(query, self._key).fetchone()[0])

    def add(self, entry: SendRecord) -> None:
        """Stores a new purpose with its first attempt; durable when it returns."""
        values = (
            *self._key,
            entry.purpose,
            entry.nonce,
            entry.to,
            entry.data,
            str(entry.value),
            entry.gas,
        )
        with self._changing():
            self._db.execute(
                (
                    "INSERT INTO sends (domain, account, purpose, nonce, destination, data, value, "
                    "gas) VALUES (?,?,?,?,?,?,?,?)"
                ),
                values,
            )
            for attempt in entry.attempts:
                self._insert(entry.nonce, attempt)

    def attempt(self, entry: SendRecord, attempt: Attempt) -> None:
        with self._changing():
            self._insert(entry.nonce, attempt)

    def mark(
        self, attempt: Attempt, *, taken: bool | None = None, refused: bool | None = None
    ) -> None:
        query = (
            "UPDATE attempts SET taken=coalesce(?, taken), refused=coalesce(?, refused) "
            "WHERE hash=?"
        )
        with self._using():
            self._db.execute(query, (taken, refused, attempt.hash))

    def renumber(self, entry: SendRecord, nonce: int, attempt: Attempt) -> None:
        """Gives a purpose a new nonce, because another program has used the old one for good."""
        with self._changing():
            self._db.execute(
                "DELETE FROM attempts WHERE domain=? AND account=? AND nonce=?",
                (*self._key, entry.nonce),
            )
            self._db.execute(
                "UPDATE sends SET nonce=? WHERE domain=? AND account=? AND purpose=?",
                (nonce, *self._key, entry.purpose),
            )
            self._insert(nonce, attempt)

    def settle(self, purpose: str, receipt: Receipt, reason: str) -> None:
        with self._using():
            self._db.execute(
                "UPDATE sends SET receipt=?, reason=? WHERE domain=? AND account=? AND purpose=?",
                (canonical.encode(receipt), reason, *self._key, purpose),
            )

    def reopen(self, entry: SendRecord) -> None:
        """Removes the outcome, because a reorganisation removed the block. No node may have the
        transactions any more.
        """
        with self._changing():
            self._db.execute(
                "UPDATE sends SET receipt=NULL, reason='' "
                "WHERE domain=? AND account=? AND purpose=?",
                (*self._key, entry.purpose),
            )
            self._db.execute(
                "UPDATE attempts SET taken=0 WHERE domain=? AND account=? AND nonce=?",
                (*self._key, entry.nonce),
            )

    def forget(self, entry: SendRecord) -> None:
        with self._changing():
            self._db.execute(
                "DELETE FROM attempts WHERE domain=? AND account=? AND nonce=?",
                (*self._key, entry.nonce),
            )
            self._db.execute(
                "DELETE FROM sends WHERE domain=? AND account=? AND purpose=?",
                (*self._key, entry.purpose),
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}", RETRY_SECONDS) from error
        except sqlite3.ProgrammingError:
            raise  # a bug of ours, not damage
        except sqlite3.DatabaseError as error:
            # Nothing is sent from a damaged file: a missing purpose could be done a second time.
            raise Unavailable(str(trouble(self._path, error)), RETRY_SECONDS) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """As `_using`, in one database transaction, durable at the end of the block."""
        with self._using():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # a disk that is full has ended it by itself
                    self._db.execute("ROLLBACK")

    def _insert(self, nonce: int, attempt: Attempt) -> None:
        values = (
            attempt.hash,
            *self._key,
            nonce,
            attempt.raw,
            str(attempt.fee_max),
            str(attempt.tip_max),
            attempt.taken,
            attempt.refused,
            attempt.cancels,
        )
        self._db.execute(
            "INSERT INTO attempts (hash, domain, account, nonce, raw, fee_max, tip_max, taken, "
            "refused, cancels) VALUES (?,?,?,?,?,?,?,?,?,?)",
            values,
        )

    def _select(self, condition: str, *values: str | int) -> tuple[SendRecord, ...]:
        # `condition` is one of the literals above, never input.
        columns = "purpose, nonce, destination, data, value, gas, receipt, reason"
        query = f"SELECT {columns} FROM sends WHERE domain=? AND account=? AND {condition}"
        rows = self._db.execute(query, (*self._key, *values)).fetchall()
        return tuple(self._entry(*row) for row in rows)

    def _entry(
        self,
        purpose: str,
        nonce: int,
        to: bytes | None,
        data: bytes,
        value: str,
        gas: int,
        receipt: bytes | None,
        reason: str,
    ) -> SendRecord:
        rows = self._db.execute(
            (
                "SELECT hash, raw, fee_max, tip_max, taken, refused, cancels FROM attempts "
                "WHERE domain=? AND account=? AND nonce=? ORDER BY rowid"
            ),
            (*self._key, nonce),
        )
        attempts = tuple(
            Attempt(Hash32(h), raw, int(fee), int(tip), *(bool(mark) for mark in marks))
            for h, raw, fee, tip, *marks in rows
        )
        done = None if receipt is None else canonical.decode(Receipt, receipt, RECEIPT_BYTES_MAX)
        return SendRecord(
            purpose=purpose,
            nonce=nonce,
            to=None if to is None else Address(to),
            data=data,
            value=int(value),
            gas=gas,
            attempts=attempts,
            receipt=done,
            reason=reason,
        )


def ensure(path: Path) -> None:
    """Makes the file if there is none. Raises FileDamaged if it is not whole, Unavailable while
    nobody can tell.
    """
    _opened(path).close()


def mined(path: Path, account: Address, known: Set[str]) -> list[tuple[str, Receipt]]:
    """Returns what an account's mined transactions were for, with their receipts, on all chains.

    A purpose is the text that names what a transaction is for; it is sent at most once.

    It returns the newest `MINED_MAX`, without those in `known`. It only reads, and does not make a
    missing file.
    """
    if not path.exists():
        return []
    query = "SELECT purpose FROM sends WHERE account=? AND receipt IS NOT NULL"
    reading = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(reading, uri=True, timeout=10)) as connection:
        rows = connection.execute(f"{query} ORDER BY rowid DESC LIMIT ?", (account, MINED_MAX))
        fresh = [purpose for (purpose,) in rows.fetchall() if purpose not in known]
        return [
            (purpose, canonical.decode(Receipt, receipt, RECEIPT_BYTES_MAX))
            for purpose in fresh
            for (receipt,) in connection.execute(
                "SELECT receipt FROM sends WHERE account=? AND purpose=? AND receipt IS NOT NULL",
                (account, purpose),
            )
        ]


def _opened(path: Path) -> sqlite3.Connection:
    make_whole(path, _SCHEMA)
    try:
        connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level=None, timeout=10
        )
    except sqlite3.OperationalError as error:
        raise trouble(path, error) from error
    try:
        check_whole(path, connection)
        _check_tables(path, connection)
        connection.execute(
            "PRAGMA synchronous=FULL"
        )  # a nonce that is forgotten after a power cut could be used twice
        connection.execute(SMALL_CACHE)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_tables(path: Path, connection: sqlite3.Connection) -> None:
    for table, columns in (
        ("sends", "domain, account, purpose, nonce, data, receipt"),
        ("attempts", "hash, nonce, raw, taken, refused, cancels"),
    ):
        try:
            connection.execute(f"SELECT {columns} FROM {table} LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise trouble(path, error) from error
