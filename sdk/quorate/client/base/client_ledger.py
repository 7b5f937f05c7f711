"""The client's ledger: every order it signed, each checked charge, and every voucher it signed.

Each profile has one SQLite file, so that several commands at once share one record. A voucher's sum
is computed only here, never from the coordinator's figures. Amounts are text, because SQLite's
integers end at 64 bits.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.base.errors import ProfileError, UnavailableError
from quorate_protocol.codec import canonical
from quorate_protocol.messages.signed import Order, Voucher
from quorate_protocol.rules import credit
from quorate_protocol.units import Address, Amount, Hash32, Nonce, UnixSeconds
from quorate_runtime.durable import FileDamaged, check_whole, make_whole

BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    job_id BLOB PRIMARY KEY, coordinator BLOB NOT NULL, nonce TEXT NOT NULL,
    name TEXT NOT NULL, "order" BLOB NOT NULL,
    spec BLOB NOT NULL, session BLOB NOT NULL, submitted_at INTEGER NOT NULL,
    charged TEXT, outputs TEXT,
    ack BLOB, reserved TEXT NOT NULL, funded_until INTEGER NOT NULL, is_returned INTEGER NOT NULL,
    metered TEXT NOT NULL DEFAULT '0');
CREATE INDEX IF NOT EXISTS orders_by_coordinator ON orders (coordinator, submitted_at);
CREATE TABLE IF NOT EXISTS vouchers (coordinator BLOB PRIMARY KEY,
    cumulative TEXT NOT NULL, carried TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS witnessed (assignment BLOB PRIMARY KEY, commit_hash BLOB NOT NULL,
    is_taken INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS withdrawals (id TEXT PRIMARY KEY, amount TEXT NOT NULL,
    receiver BLOB NOT NULL, is_open INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS one_open_withdrawal ON withdrawals (is_open) WHERE is_open = 1;
"""
"""`is_taken`: the coordinator confirmed that it has our witness. `carried`: what orders cost that
another copy of this ledger has. At most one withdrawal is open, so no money is asked for twice.
"""


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """One order of this client.

    `charged` is None until its receipt was checked. `session` is the Session envelope under which
    the order was signed.
    """

    job_id: Hash32
    name: str
    order: Order
    spec: bytes
    session: bytes
    submitted_at: int
    charged: Amount | None
    outputs: Path | None
    ack: bytes | None = None  # the coordinator's Ack envelope, once received
    reserved: Amount = Amount(0)  # the most that it can cost the tab
    metered: Amount = Amount(0)  # of a rental that runs: what it was charged, as checked
    # Its escrow of its own holds the budget until then; 0 = the tab pays it.
    funded_until: UnixSeconds = UnixSeconds(0)


@dataclass(frozen=True, slots=True)
class SpendingTotals:
    """Totals for one coordinator: checked charges, what open orders may still cost, and the sum of
    the newest voucher.
    """

    charged: Amount
    promised: Amount
    nonce_max: Nonce
    signed: Amount = Amount(0)


@dataclass(frozen=True, slots=True)
class WithdrawalRecord:
    """One withdrawal that this profile began. It is recorded before its first transaction.

    `receiver` gets the money at the end.
    """

    id: str
    amount: Amount
    receiver: Address


class Ledger:
    """The ledger of one profile. Calls block briefly; each is one transaction.

    Raises UnavailableError if a transaction fails: the disk is full, or another program holds the
    lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_whole(path, _SCHEMA)
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            check_whole(path, self._db)
            self._db.execute("PRAGMA synchronous=FULL")
            self._add_metered()
        except FileDamaged as error:
            raise ProfileError(f"the ledger cannot be used: {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise ProfileError(f"{path}: the ledger cannot be used: {error}") from error

    def _add_metered(self) -> None:
        """Ledgers from before rentals lack the column."""
        if not any(row[1] == "metered" for row in self._db.execute("PRAGMA table_info(orders)")):
            self._db.execute("ALTER TABLE orders ADD COLUMN metered TEXT NOT NULL DEFAULT '0'")

    def close(self) -> None:
        self._db.close()

    def record(self, entry: OrderRecord, lead: Amount | None = None) -> bool:
        """Records an order before it is sent. Otherwise an order could be charged without our
        knowledge. Returns False, and records nothing, if open orders would then reserve more than
        `lead`.
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
            str(entry.reserved),
            entry.funded_until,
            0,
            "0",
        )
        with self._transaction() as db:
            promised = self.debt(entry.order.coordinator).promised
            if lead is not None and promised + entry.reserved > lead:
                return False
            db.execute(f"INSERT OR IGNORE INTO orders VALUES ({', '.join('?' * len(row))})", row)
        return True

    def acknowledge(self, job_id: Hash32, ack: bytes, reserved: Amount) -> None:
        """Keeps the coordinator's Ack, against which commits are checked, and what the job can cost
        the tab by it.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET ack = ?, reserved = ? WHERE job_id = ?",
                (ack, str(reserved), job_id),
            )

    def meter(self, job_id: Hash32, charged: Amount, most: Amount) -> None:
        """Keeps what a rental was charged so far. It never falls, nor does it exceed what the
        rental reserves. The first charge lowers that to `most`.
        """
        with self._transaction():
            entry = self.entry(job_id)
            if entry is not None and entry.charged is None:
                reserved = entry.reserved
                if charged and not entry.metered:
                    reserved = min(reserved, most)
                    self._set(job_id, "reserved", str(reserved))
                metered = max(entry.metered, min(charged, reserved))
                self._set(job_id, "metered", str(metered))

    def reserve(self, job_id: Hash32, most: Amount, lead: Amount) -> bool:
        """Raises what a rental may cost in all; it never falls. Returns False, and changes nothing,
        if open orders would then reserve more than `lead`.
        """
        with self._transaction():
            entry = self.entry(job_id)
            if entry is None or entry.charged is not None or most <= entry.reserved:
                return True
            promised = self.debt(entry.order.coordinator).promised
            if promised + most - entry.reserved > lead:
                return False
            self._set(job_id, "reserved", str(most))
            return True

    def renew_session(self, coordinator: Address, session: bytes) -> None:
        """Replaces the session of the newest order by one that reaches farther."""
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET session = ? WHERE rowid = (SELECT rowid FROM orders WHERE "
                "coordinator = ? ORDER BY rowid DESC LIMIT 1)",
                (session, coordinator),
            )

    def _set(self, job_id: Hash32, column: str, value: str) -> None:
        self._db.execute(f"UPDATE orders SET {column} = ? WHERE job_id = ?", (value, job_id))

    def forget(self, job_id: Hash32) -> None:
        """Removes an order that the coordinator refused. A funded one stays: its money is on
        chain.
        """
        with self._transaction() as db:
            db.execute(
                "DELETE FROM orders WHERE job_id = ? AND charged IS NULL AND funded_until = 0",
                (job_id,),
            )

    def settle(self, job_id: Hash32, charged: Amount) -> None:
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET charged = ? WHERE job_id = ? AND charged IS NULL",
                (str(charged), job_id),
            )

    def entry(self, job_id: Hash32) -> OrderRecord | None:
        """Returns one order, or None if this profile never signed it."""
        row = self._db.execute(f"{_SELECT} WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else _entry(row)

    def named(self, coordinator: Address, name: str) -> OrderRecord | None:
        """Returns the newest order with this name, or None."""
        row = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND name = ? ORDER BY rowid DESC LIMIT 1",
            (coordinator, name),
        ).fetchone()
        return None if row is None else _entry(row)

    def with_spec(self, coordinator: Address, name: str, spec: bytes) -> OrderRecord | None:
        """Returns the newest order of exactly this job, or None."""
        row = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND name = ? AND spec = ? ORDER BY rowid DESC "
            "LIMIT 1",
            (coordinator, name, spec),
        ).fetchone()
        return None if row is None else _entry(row)

    def beginning(self, coordinator: Address, digits: str) -> list[OrderRecord]:
        """Returns up to two orders whose job id begins with these hex digits; two show that the
        prefix is ambiguous.
        """
        rows = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND hex(job_id) GLOB ? LIMIT 2",
            (coordinator, f"{digits.upper()}*"),
        )
        return [_entry(row) for row in rows]

    def entries(self, coordinator: Address, limit: int = 1000) -> list[OrderRecord]:
        """Returns orders, newest first."""
        rows = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? ORDER BY submitted_at DESC, rowid DESC LIMIT ?",
            (coordinator, limit),
        )
        return [_entry(row) for row in rows]

    def open_jobs(self, coordinator: Address) -> list[Hash32]:
        """Returns at most 10,000 jobs whose charge is not known yet, oldest first."""
        rows = self._db.execute(
            (
                "SELECT job_id FROM orders WHERE coordinator = ? AND charged IS NULL ORDER BY "
                "submitted_at LIMIT 10000"
            ),
            (coordinator,),
        )
        return [Hash32(row[0]) for row in rows]

    def debt(self, coordinator: Address) -> SpendingTotals:
        """Returns totals over all orders that a coordinator's tab pays."""
        signed, charged = self._signed(coordinator)
        promised, nonce_max = 0, 0
        for nonce, paid, metered, reserved, until in self._db.execute(
            "SELECT nonce, charged, metered, reserved, funded_until FROM orders "
            "WHERE coordinator = ?",
            (coordinator,),
        ):
            nonce_max = max(nonce_max, int(nonce))
            if not until:
                charged = Amount(charged + int(metered if paid is None else paid))
                promised += int(reserved) - int(metered) if paid is None else 0
        return SpendingTotals(charged, Amount(promised), Nonce(nonce_max), signed)

    def coordinators(self) -> list[Address]:
        rows = self._db.execute("SELECT DISTINCT coordinator FROM orders LIMIT 1000")
        return [Address(row[0]) for row in rows]

    def open_orders(self, coordinator: Address) -> list[OrderRecord]:
        """Returns at most 10,000 orders whose charge is not known yet."""
        rows = self._db.execute(
            f"{_SELECT} WHERE coordinator = ? AND charged IS NULL LIMIT 10000", (coordinator,)
        )
        return [_entry(row) for row in rows]

    def named_with(self, beginning: str) -> tuple[Amount, Amount]:
        """Returns what settled orders whose names begin so cost, at all coordinators, and the
        budgets of the others.
        """
        rows = self._db.execute(
            'SELECT charged, "order" FROM orders WHERE substr(name, 1, ?) = ?',
            (len(beginning), beginning),
        ).fetchall()
        cost = sum(int(charged) for charged, _ in rows if charged is not None)
        opened = [canonical.decode(Order, order) for charged, order in rows if charged is None]
        return Amount(cost), Amount(sum(order.budget for order in opened))

    def funded_orders(self) -> list[OrderRecord]:
        """Returns the orders whose own escrow may still hold money, oldest first."""
        rows = self._db.execute(
            f"{_SELECT} WHERE funded_until > 0 AND is_returned = 0 ORDER BY rowid LIMIT 1000"
        )
        return [_entry(row) for row in rows]

    def returned(self, job_id: Hash32) -> None:
        with self._transaction() as db:
            db.execute("UPDATE orders SET is_returned = 1 WHERE job_id = ?", (job_id,))

    def open_withdrawal(self) -> WithdrawalRecord | None:
        row = self._db.execute(
            "SELECT id, amount, receiver FROM withdrawals WHERE is_open = 1"
        ).fetchone()
        return (
            None if row is None else WithdrawalRecord(row[0], Amount(int(row[1])), Address(row[2]))
        )

    def begin_withdrawal(self, record: WithdrawalRecord) -> WithdrawalRecord:
        """Records a withdrawal before its first transaction. Returns the open one if there is
        one.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO withdrawals VALUES (?, ?, ?, 1)",
                (record.id, str(record.amount), record.receiver),
            )
        begun = self.open_withdrawal()
        assert begun is not None, "it was recorded, or there was one"
        return begun

    def end_withdrawal(self, record: WithdrawalRecord) -> None:
        with self._transaction() as db:
            db.execute("UPDATE withdrawals SET is_open = 0 WHERE id = ?", (record.id,))

    def draft_voucher(
        self,
        client: Address,
        coordinator: Address,
        lead: Amount,
        locked: Amount,
        session_limit: Amount,
    ) -> Voucher | None:
        """Returns the next voucher, or None if it would add nothing.

        It covers checked charges, and as far as `lead` and the tab's `locked` reach what open
        orders may still be charged. It is recorded before it can be signed, and never falls.
        """
        with self._transaction():
            totals = self.debt(coordinator)
            cumulative = credit.voucher_for(
                totals.charged, totals.promised, lead, totals.signed, locked, session_limit
            )
            if cumulative <= totals.signed:
                return None
            self._keep_signed(coordinator, cumulative, self._signed(coordinator)[1])
        return Voucher(client, coordinator, cumulative)

    def adopt_voucher(self, coordinator: Address, cumulative: Amount, unknown: Amount) -> None:
        """Takes over a voucher that our key signed and this ledger does not know, because it was
        restored from a backup.

        `unknown` is what the coordinator charged for orders that are not in this ledger. It counts
        as far as that voucher pays it, so nothing is paid that was not signed before.
        """
        with self._transaction():
            totals = self.debt(coordinator)
            if cumulative <= totals.signed:
                return
            carried = max(0, min(unknown, cumulative - totals.charged))
            carried += self._signed(coordinator)[1]
            self._keep_signed(coordinator, cumulative, Amount(carried))

    def _keep_signed(self, coordinator: Address, cumulative: Amount, carried: Amount) -> None:
        row = (coordinator, str(cumulative), str(carried))
        self._db.execute("INSERT OR REPLACE INTO vouchers VALUES (?, ?, ?)", row)

    def _signed(self, coordinator: Address) -> tuple[Amount, Amount]:
        """Returns the sum of the newest voucher, and what is carried."""
        row = self._db.execute(
            "SELECT cumulative, carried FROM vouchers WHERE coordinator = ?", (coordinator,)
        ).fetchone()
        return (Amount(int(row[0])), Amount(int(row[1]))) if row else (Amount(0), Amount(0))

    def witnessing(self, assignment: Hash32, commit_hash: Hash32) -> Hash32:
        """Returns which commit of an assignment is witnessed, and records this one if it is the
        first.

        It is recorded before it is signed, and binds all programs of the profile.
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
        with self._transaction() as db:
            db.execute("UPDATE witnessed SET is_taken = 1 WHERE assignment = ?", (assignment,))

    def has_witnessed(self, assignment: Hash32, commit_hash: Hash32) -> bool:
        row = self._db.execute(
            "SELECT commit_hash, is_taken FROM witnessed WHERE assignment = ?", (assignment,)
        ).fetchone()
        return row is not None and (bytes(row[0]), bool(row[1])) == (commit_hash, True)

    def last_voucher(self, client: Address, coordinator: Address) -> Voucher | None:
        """Returns the newest voucher, to send it again, or None."""
        signed, _ = self._signed(coordinator)
        return Voucher(client, coordinator, signed) if signed else None

    def newest_session(self, coordinator: Address) -> bytes | None:
        """Returns the canonical Session envelope of the newest order.

        Newest means the last row, because after the clock was set back, times mislead.
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
                if self._db.in_transaction:  # SQLite itself rolls back if the disk is full
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            remedy = (
                f"check `df -h {self._path.parent}`, then `quorate ps` to see past orders "
                "before you order again"
            )
            raise UnavailableError(
                f"{self._path}: the ledger cannot be written ({error}); {remedy}"
            ) from error


_SELECT = (
    'SELECT job_id, name, "order", spec, session, submitted_at, charged, outputs, ack, reserved, '
    "funded_until, metered FROM orders"
)


def _entry(row: tuple[Any, ...]) -> OrderRecord:
    job_id, name, order, spec, session, submitted_at, charged, outputs, ack, *money = row
    reserved, until, metered = money
    paid = None if charged is None else Amount(int(charged))
    message = canonical.decode(Order, order)
    return OrderRecord(
        job_id=Hash32(job_id),
        name=name,
        order=message,
        spec=spec,
        session=session,
        submitted_at=submitted_at,
        charged=paid,
        outputs=Path(outputs) if outputs else None,
        ack=ack,
        reserved=Amount(int(reserved)),
        funded_until=UnixSeconds(int(until)),
        metered=Amount(int(metered)),
    )
