"""What one key has signed, on disk before it is sent: purpose, nonce, raw transactions, and how
it ended.

One SQLite file may serve several keys and chains: rows are kept per domain (chain id and genesis
hash, so that a devnet started anew does not meet the nonces of the old one) and account.
Synchronous; the Sender calls it in a thread.
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
from quorate_runtime.sqlite.durable import SMALL_CACHE, check_whole, make_whole, trouble

RECEIPT_BYTES_MAX = 32 << 20
UNSETTLED_MAX = 256
MINED_MAX = 1_000
NONCE_MAX = 2**62
RETRY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sends (
    domain BLOB NOT NULL, account BLOB NOT NULL, purpose TEXT NOT NULL, nonce INTEGER NOT NULL,
    destination BLOB, data BLOB NOT NULL, value TEXT NOT NULL, gas INTEGER NOT NULL,
    receipt BLOB, reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (domain, account, purpose), UNIQUE (domain, account, nonce));
CREATE TABLE IF NOT EXISTS attempts (
    hash BLOB PRIMARY KEY, domain BLOB NOT NULL, account BLOB NOT NULL, nonce INTEGER NOT NULL,
    raw BLOB NOT NULL, fee_max TEXT NOT NULL, tip_max TEXT NOT NULL, taken INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS attempts_nonce ON attempts (domain, account, nonce);
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One signed transaction for a nonce; a bump adds another. `taken`: a node has accepted it."""

    hash: Hash32
    raw: bytes
    fee_max: int
    tip_max: int
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One purpose: what is to be done once, and what was signed for it (oldest attempt first)."""

    purpose: str
    nonce: int
    to: Address | None
    data: bytes
    value: int
    gas: int
    attempts: tuple[Attempt, ...]
    receipt: Receipt | None = None
    reason: str = ""  # of a revert


class Outbox:
    """The sends of one account on one chain."""

    def __init__(self, path: Path, domain: bytes, account: Address) -> None:
        """Opens or makes the file. FileDamaged when there is one that is not whole: what it
        forgot could be done a second time.

        Every method raises Unavailable while the disk or another process's lock keeps it from
        its file; nothing has changed then.
        """
        self._path, self._key = path, (domain, bytes(account))
        self._lock = threading.Lock()
        self._db = _opened(path)

    def find(self, purpose: str) -> Entry | None:
        """The entry of a purpose."""
        with self._using():
            rows = self._select("purpose = ?", purpose)
        return rows[0] if rows else None

    def unsettled(self, nonce_max: int) -> tuple[Entry, ...]:
        """Entries without an end whose nonce is at most that, lowest first, at most
        `UNSETTLED_MAX`.
        """
        with self._using():
            return self._select(
                "receipt IS NULL AND nonce <= ? ORDER BY nonce LIMIT ?", nonce_max, UNSETTLED_MAX
            )

    def nonces(self, first: int) -> frozenset[int]:
        """Nonces from `first` on that some purpose holds."""
        with self._using():
            rows = self._db.execute(
                "SELECT nonce FROM sends WHERE domain=? AND account=? AND nonce>=?",
                (*self._key, first),
            )
            return frozenset(row[0] for row in rows)

    def add(self, entry: Entry) -> None:
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

    def attempt(self, entry: Entry, attempt: Attempt) -> None:
        """Stores one more attempt at the same nonce."""
        with self._changing():
            self._insert(entry.nonce, attempt)

    def taken(self, attempt: Attempt) -> None:
        """Notes that a node accepted it."""
        with self._using():
            self._db.execute("UPDATE attempts SET taken=1 WHERE hash=?", (attempt.hash,))

    def renumber(self, entry: Entry, nonce: int, attempt: Attempt) -> None:
        """Gives a purpose a new nonce, because the old one was used for good by something else."""
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
        """Stores how it ended."""
        with self._using():
            self._db.execute(
                "UPDATE sends SET receipt=?, reason=? WHERE domain=? AND account=? AND purpose=?",
                (canonical.encode(receipt), reason, *self._key, purpose),
            )

    def reopen(self, purpose: str) -> None:
        """Takes back how it ended: the chain has changed its mind."""
        with self._using():
            self._db.execute(
                (
                    "UPDATE sends SET receipt=NULL, reason='' WHERE domain=? AND account=? AND "
                    "purpose=?"
                ),
                (*self._key, purpose),
            )

    def forget(self, entry: Entry) -> None:
        """Removes a purpose that no node has ever taken; its nonce is free again."""
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
        """Closes the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One task at a time."""
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: {error}", RETRY_SECONDS) from error
        except sqlite3.ProgrammingError:
            raise  # ours
        except sqlite3.DatabaseError as error:
            # Nothing is sent from what cannot be read: what it forgot could be done a second time.
            raise Unavailable(str(trouble(self._path, error)), RETRY_SECONDS) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """As `_using`, in one transaction: all of it, durable at the end of the block, or
        nothing.
        """
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
            int(attempt.taken),
        )
        self._db.execute("INSERT INTO attempts VALUES (?,?,?,?,?,?,?,?)", values)

    def _select(self, condition: str, *values: str | int) -> tuple[Entry, ...]:
        # `condition` is one of the two literals above, never input.
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
    ) -> Entry:
        rows = self._db.execute(
            (
                "SELECT hash, raw, fee_max, tip_max, taken FROM attempts WHERE domain=? AND "
                "account=? "
                "AND nonce=? ORDER BY rowid"
            ),
            (*self._key, nonce),
        )
        attempts = tuple(
            Attempt(Hash32(h), raw, int(fee), int(tip), bool(taken))
            for h, raw, fee, tip, taken in rows
        )
        done = None if receipt is None else canonical.decode(Receipt, receipt, RECEIPT_BYTES_MAX)
        return Entry(
            purpose,
            nonce,
            None if to is None else Address(to),
            data,
            int(value),
            gas,
            attempts,
            done,
            reason,
        )


def ensure(path: Path) -> None:
    """Makes the file if there is none. `FileDamaged` when there is one that is not whole,
    `Unavailable` while that cannot be seen.
    """
    _opened(path).close()


def has_signed(path: Path, account: Address, prefix: str) -> bool:
    """Whether an account's purpose that begins so stands there, of whichever chain. Raises as
    `ensure`.
    """
    with closing(_opened(path)) as connection:
        query = "SELECT 1 FROM sends WHERE account=? AND substr(purpose, 1, ?)=? LIMIT 1"
        return connection.execute(query, (account, len(prefix), prefix)).fetchone() is not None


def mined(path: Path, account: Address, known: Set[str]) -> list[tuple[str, Receipt]]:
    """Purposes of an account that were mined, on whichever chain, with their receipts; the newest
    `MINED_MAX`, without those that are `known`. It only reads: a file that is gone stays gone.
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
    """Another file put back under this name has others; and none of this one's could be read
    from it.
    """
    for table, columns in (
        ("sends", "domain, account, purpose, nonce, data, receipt"),
        ("attempts", "hash, nonce, raw, taken"),
    ):
        try:
            connection.execute(f"SELECT {columns} FROM {table} LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise trouble(path, error) from error
