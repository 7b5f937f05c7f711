"""The client's own books: every order it signed, what each was found to have cost, every voucher
it signed.

One SQLite file per profile, so that several commands at once keep one truth. A voucher's sum is
computed here and nowhere else: never from what a coordinator says. Amounts are text, because
SQLite's integers end at 64 bits.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate.errors import EvidenceError, ProfileError, UnavailableError
from quorate_protocol.codec import canonical
from quorate_protocol.messages.signed import Order, Voucher
from quorate_protocol.units import Address, Amount, Hash32, Nonce
from quorate_runtime.sqlite.durable import FileDamaged, check_whole, make_whole

BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    job_id BLOB PRIMARY KEY, coordinator BLOB NOT NULL, nonce TEXT NOT NULL, name TEXT NOT NULL, "order" BLOB NOT NULL,
    spec BLOB NOT NULL, session BLOB NOT NULL, submitted_at INTEGER NOT NULL, charged TEXT, outputs TEXT,
    ack BLOB);
CREATE INDEX IF NOT EXISTS orders_by_coordinator ON orders (coordinator, submitted_at);
CREATE TABLE IF NOT EXISTS vouchers (coordinator BLOB PRIMARY KEY, cumulative TEXT NOT NULL, nonce_floor TEXT NOT NULL);
"""
_WITNESSED = (
    "CREATE TABLE IF NOT EXISTS witnessed (assignment BLOB PRIMARY KEY, commit_hash BLOB "
    "NOT NULL, is_taken INTEGER NOT NULL);"
)
"""Came after the others; `is_taken`: the coordinator answered that it has our witness."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One order of this client. `charged` is None until its receipt was checked; `session` is
    the Session envelope it rests on.
    """

    job_id: Hash32
    name: str
    order: Order
    spec: bytes
    session: bytes
    submitted_at: int
    charged: Amount | None
    outputs: Path | None
    ack: bytes | None = None  # the coordinator's Ack envelope, once it answered


@dataclass(frozen=True, slots=True)
class Debt:
    """Sums for one coordinator: what was checked and charged, what open orders may still cost."""

    charged: Amount
    open_budgets: Amount
    nonce_max: Nonce


class Ledger:
    """The books of one profile. Calls block briefly; every one is a transaction of its own.
    UnavailableError when one cannot be made: the disk is full, or another program keeps the file
    locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_whole(path, _SCHEMA + _WITNESSED)
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            check_whole(path, self._db)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_WITNESSED)
        except FileDamaged as error:
            raise ProfileError(f"the ledger cannot be used: {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise ProfileError(f"{path}: the ledger cannot be used: {error}") from error

    def close(self) -> None:
        """Ends the use of the file."""
        self._db.close()

    def record(self, entry: Entry) -> None:
        """Writes an order down before it is sent: an order that nobody remembers could be
        charged unseen.
        """
        row = (
            entry.job_id,
            entry.order.coordinator,
            str(entry.order.nonce),
            entry.name,
            canonical.encode(entry.order),
            entry.spec,
            entry.session,
            entry.submitted_at,
            None,
            str(entry.outputs.absolute()) if entry.outputs else None,
            None,
        )
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def acknowledge(self, job_id: Hash32, ack: bytes) -> None:
        """Keeps the coordinator's Ack: what commits are held against."""
        with self._transaction() as db:
            db.execute("UPDATE orders SET ack = ? WHERE job_id = ?", (ack, job_id))

    def forget(self, job_id: Hash32) -> None:
        """Takes back an order that the coordinator refused."""
        with self._transaction() as db:
            db.execute("DELETE FROM orders WHERE job_id = ? AND charged IS NULL", (job_id,))

    def settle(self, job_id: Hash32, charged: Amount) -> None:
        """Notes the checked charge of a job, once."""
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET charged = ? WHERE job_id = ? AND charged IS NULL",
                (str(charged), job_id),
            )

    def entry(self, job_id: Hash32) -> Entry | None:
        """One order, None when this profile never signed it."""
        row = self._db.execute(f"{_SELECT} WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else _entry(row)

    def named(self, coordinator: Address, name: str) -> Entry | None:
        """The newest order with a name."""
        row = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND name = ? ORDER BY rowid DESC LIMIT 1",
            (coordinator, name),
        ).fetchone()
        return None if row is None else _entry(row)

    def beginning(self, coordinator: Address, digits: str) -> list[Entry]:
        """Orders whose job id begins with these hex digits, at most two: enough to know that
        they name one.
        """
        rows = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND hex(job_id) GLOB ? LIMIT 2",
            (coordinator, f"{digits.upper()}*"),
        )
        return [_entry(row) for row in rows]

    def entries(self, coordinator: Address, limit: int = 1000) -> list[Entry]:
        """Newest first."""
        rows = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? ORDER BY submitted_at DESC, rowid DESC LIMIT ?",
            (coordinator, limit),
        )
        return [_entry(row) for row in rows]

    def open_jobs(self, coordinator: Address) -> list[Hash32]:
        """Jobs whose charge is not known yet, oldest first, at most 10,000."""
        rows = self._db.execute(
            (
                "SELECT job_id FROM orders WHERE coordinator = ? AND charged IS NULL ORDER BY "
                "submitted_at LIMIT 10000"
            ),
            (coordinator,),
        )
        return [Hash32(row[0]) for row in rows]

    def debt(self, coordinator: Address) -> Debt:
        """Sums over all orders with a coordinator."""
        charged, open_budgets, nonce_max = 0, 0, 0
        # Only open orders are looked into: there may be ten thousands of others, and every order
        # asks this twice.
        for nonce, paid in self._db.execute(
            "SELECT nonce, charged FROM orders WHERE coordinator = ?", (coordinator,)
        ):
            nonce_max = max(nonce_max, int(nonce))
            charged += int(paid or 0)
        for (order,) in self._db.execute(
            'SELECT "order" FROM orders WHERE coordinator = ? AND charged IS NULL', (coordinator,)
        ):
            open_budgets += canonical.decode(Order, order).budget
        return Debt(Amount(charged), Amount(open_budgets), Nonce(nonce_max))

    def draft_voucher(self, client: Address, coordinator: Address, up_to: Amount) -> Voucher | None:
        """The next voucher: the sum of checked charges, and below which nonce everything is in
        it. None when it would add nothing.

        It is written down before it can be signed, and never falls. EvidenceError when the
        session does not reach so far.
        """
        with self._transaction() as db:
            rows = db.execute(
                "SELECT nonce, charged FROM orders WHERE coordinator = ?", (coordinator,)
            ).fetchall()
            cumulative = sum(int(charged) for _, charged in rows if charged is not None)
            still_open = [int(nonce) for nonce, charged in rows if charged is None]
            floor = (
                min(still_open)
                if still_open
                else max((int(nonce) for nonce, _ in rows), default=-1) + 1
            )
            last = db.execute(
                "SELECT cumulative, nonce_floor FROM vouchers WHERE coordinator = ?", (coordinator,)
            ).fetchone()
            if cumulative <= (int(last[0]) if last else 0):
                return None
            if cumulative > up_to:
                raise EvidenceError(
                    f"voucher: {cumulative} is above what the session may sign ({up_to})"
                )
            db.execute(
                "INSERT OR REPLACE INTO vouchers VALUES (?, ?, ?)",
                (coordinator, str(cumulative), str(floor)),
            )
        return Voucher(client, coordinator, Amount(cumulative), Nonce(floor))

    def witnessing(self, assignment: Hash32, commit_hash: Hash32) -> Hash32:
        """Which commit of an assignment is witnessed: noted before it is signed, and the first
        stands for all programs of the profile.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO witnessed VALUES (?, ?, 0)", (assignment, commit_hash)
            )
            row = db.execute(
                "SELECT commit_hash FROM witnessed WHERE assignment = ?", (assignment,)
            ).fetchone()
        return Hash32(row[0])

    def witness_taken(self, assignment: Hash32) -> None:
        """The coordinator has our witness of the commit that is noted."""
        with self._transaction() as db:
            db.execute("UPDATE witnessed SET is_taken = 1 WHERE assignment = ?", (assignment,))

    def has_witnessed(self, assignment: Hash32, commit_hash: Hash32) -> bool:
        """Whether the coordinator took our witness of this commit."""
        row = self._db.execute(
            "SELECT commit_hash, is_taken FROM witnessed WHERE assignment = ?", (assignment,)
        ).fetchone()
        return row is not None and (bytes(row[0]), bool(row[1])) == (commit_hash, True)

    def last_voucher(self, client: Address, coordinator: Address) -> Voucher | None:
        """The newest one, to send again."""
        row = self._db.execute(
            "SELECT cumulative, nonce_floor FROM vouchers WHERE coordinator = ?", (coordinator,)
        ).fetchone()
        return (
            None
            if row is None
            else Voucher(client, coordinator, Amount(int(row[0])), Nonce(int(row[1])))
        )

    def newest_session(self, coordinator: Address) -> bytes | None:
        """Canonical Session envelope of the newest order: by its row, because a clock that was
        put back makes older ones look newer.
        """
        row = self._db.execute(
            "SELECT session FROM orders WHERE coordinator = ? ORDER BY rowid DESC LIMIT 1",
            (coordinator,),
        ).fetchone()
        return None if row is None else bytes(row[0])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back where the disk is full
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            remedy = (
                f"see `df -h {self._path.parent}`, then `quorate ps` for what was ordered "
                f"before you order again"
            )
            raise UnavailableError(
                f"{self._path}: the ledger cannot be written ({error}); {remedy}"
            ) from error


_SELECT = (
    'SELECT job_id, name, "order", spec, session, submitted_at, charged, outputs, ack FROM orders'
)


def _entry(
    row: tuple[bytes, str, bytes, bytes, bytes, int, str | None, str | None, bytes | None],
) -> Entry:
    job_id, name, order, spec, session, submitted_at, charged, outputs, ack = row
    paid = None if charged is None else Amount(int(charged))
    message = canonical.decode(Order, order)
    return Entry(
        Hash32(job_id),
        name,
        message,
        spec,
        session,
        submitted_at,
        paid,
        Path(outputs) if outputs else None,
        ack,
    )
