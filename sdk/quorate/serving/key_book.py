"""Keys of a client's services: what each may spend, how fast, and until when.

One SQLite file of the profile has them, so that several gateways enforce one budget together. It
keeps the SHA-256 of a key, and never the key. Amounts are millionths of a USD.
"""

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quorate.base.errors import ProfileError, UsageError
from quorate.job.quantities import parse_amount, parse_duration
from quorate_protocol.units import Amount, usd

FILE = "keys.sqlite"
PREFIX = "qk-"
NAME_MAX = 64
BUSY_SECONDS = 10.0
ALERT_SHARES = (50, 80, 100)  # per cent of the budget
_PERIODS = {"s": 1, "m": 60, "h": 3600}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, budget INTEGER, rate INTEGER NOT NULL,
    period INTEGER NOT NULL, expires REAL, made REAL NOT NULL, revoked INTEGER NOT NULL DEFAULT 0,
    spent INTEGER NOT NULL DEFAULT 0, alerted INTEGER NOT NULL DEFAULT 0,
    webhook TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS usage (
    name TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL, tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL, spent INTEGER NOT NULL, PRIMARY KEY (name, model));
"""


class Denied(Exception):
    """A request that a key does not allow, with the HTTP status and OpenAI's word for it."""

    def __init__(self, status: int, code: str, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.retry_after = status, code, text, retry_after


@dataclass(frozen=True, slots=True)
class Key:
    """One key's limits, and what it has spent. `budget` None: any; `rate` 0: any."""

    name: str
    budget: Amount | None
    rate: int  # requests in `period` seconds
    period: int
    expires: float | None
    revoked: int  # 1 if it was
    spent: Amount
    webhook: str

    def state(self, now: float) -> str:
        if self.revoked:
            return "revoked"
        is_over = self.expires is not None and now >= self.expires
        return "expired" if is_over else "valid"


@dataclass(frozen=True, slots=True)
class Usage:
    """What requests of one key and model used."""

    tokens_in: int = 0
    tokens_out: int = 0
    spent: int = 0


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """All requests of one key for one model."""

    name: str
    model: str
    requests: int
    tokens_in: int
    tokens_out: int
    spent: Amount


@dataclass(frozen=True, slots=True)
class Alert:
    """A key reached a share of its budget, in per cent."""

    key: str
    percent: int
    spent: Amount
    budget: Amount
    webhook: str


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass(slots=True)
class Rates:
    """Counts requests by key since this process started; a full bucket holds one period's."""

    buckets: dict[str, _Bucket] = field(default_factory=dict)

    def take(self, key: Key, now: float) -> None:
        """Raises Denied above the key's rate."""
        if not key.rate:
            return
        bucket = self.buckets.setdefault(key.name, _Bucket(float(key.rate), now))
        per_second = key.rate / key.period
        bucket.tokens = min(key.rate, bucket.tokens + max(0.0, now - bucket.at) * per_second)
        bucket.at = now
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) / per_second
            raise Denied(
                429,
                "rate_limit_exceeded",
                f"key {key.name}: more than {key.rate} requests in {key.period} s; try again in "
                f"{wait:.1f} s",
                wait,
            )
        bucket.tokens -= 1


class KeyBook:
    """The keys of one profile. Calls block briefly; each is one transaction."""

    def __init__(self, home: Path) -> None:
        path = home / FILE
        try:
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            # Each request is charged, and none waits for the disk: a crash of this program loses
            # nothing, and one of the machine the last seconds.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ProfileError(f"{path}: the keys cannot be used: {error}") from error

    def close(self) -> None:
        self._db.close()

    def create(
        self,
        name: str,
        now: float,
        budget: str | int | None = None,
        rate: str = "",
        expires: str = "",
        webhook: str = "",
    ) -> str:
        """Returns the key, which is shown once and never kept. Raises UsageError."""
        if not (0 < len(name) <= NAME_MAX and name.isprintable()):
            raise UsageError(f"name: write 1 to {NAME_MAX} printable characters")
        most = None if budget is None else parse_amount(budget, "budget")
        count, period = parse_rate(rate)
        until = now + parse_duration(expires, "expires") if expires else None
        if webhook and not webhook.startswith(("http://", "https://")):
            raise UsageError(f"webhook: {webhook[:64]!r}; write an http or https URL")
        text = PREFIX + secrets.token_urlsafe(24)
        row = (name, _digest(text), most, count, period, until, now, webhook)
        try:
            with self._transaction() as db:
                db.execute(
                    "INSERT INTO keys (name, digest, budget, rate, period, expires, made, webhook) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        except sqlite3.IntegrityError as error:
            raise UsageError(f"name: there is a key {name!r}; choose another") from error
        return text

    def revoke(self, name: str) -> None:
        """Raises UsageError for an unknown name."""
        with self._transaction() as db:
            if not db.execute("UPDATE keys SET revoked = 1 WHERE name = ?", (name,)).rowcount:
                raise UsageError(f"name: there is no key {name!r}; see `quorate keys list`")

    def keys(self) -> list[Key]:
        return [Key(*row) for row in self._db.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY made")]

    def usage(self) -> list[ModelUsage]:
        columns = "name, model, requests, tokens_in, tokens_out, spent"
        rows = self._db.execute(f"SELECT {columns} FROM usage ORDER BY name, model")
        return [ModelUsage(*row) for row in rows]

    def allow(self, text: str, now: float) -> Key:
        """Returns the key of a request. Raises Denied if it may not send one now."""
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM keys WHERE digest = ?", (_digest(text),)
        ).fetchone()
        if found is None:
            raise Denied(
                401, "invalid_api_key", "this key is not known here; ask who runs the service"
            )
        key = Key(*found)
        if (state := key.state(now)) != "valid":
            raise Denied(401, "invalid_api_key", f"key {key.name} is {state}")
        check_budget(key, key.spent)
        return key

    def charge(self, name: str, model: str, used: Usage) -> list[Alert]:
        """Adds what one request used. Returns each share of the budget that it reached first."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO usage VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT (name, model) DO UPDATE "
                "SET requests = requests + 1, tokens_in = tokens_in + excluded.tokens_in, "
                "tokens_out = tokens_out + excluded.tokens_out, spent = spent + excluded.spent",
                (name, model, used.tokens_in, used.tokens_out, used.spent),
            )
            db.execute("UPDATE keys SET spent = spent + ? WHERE name = ?", (used.spent, name))
            row = db.execute(
                "SELECT spent, budget, alerted, webhook FROM keys WHERE name = ?", (name,)
            ).fetchone()
            if row is None or row[1] is None:
                return []
            spent, budget, alerted, webhook = row
            reached = [
                share for share in ALERT_SHARES if alerted < share and spent * 100 >= budget * share
            ]
            if reached:
                db.execute("UPDATE keys SET alerted = ? WHERE name = ?", (reached[-1], name))
        return [Alert(name, share, spent, budget, webhook) for share in reached]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def check_budget(key: Key, spent: int) -> None:
    """Raises Denied once the budget is spent."""
    if key.budget is not None and spent >= key.budget:
        raise Denied(
            429,
            "insufficient_quota",
            f"key {key.name}: its budget of {usd(key.budget)} USD is used up; nothing was lost",
        )


def parse_rate(text: str) -> tuple[int, int]:
    """Parses `60/m` to (requests, seconds); "" is no limit. Raises UsageError."""
    if not text:
        return 0, 1
    count, _, unit = text.partition("/")
    if not (count.isascii() and count.isdecimal() and unit in _PERIODS and 0 < int(count) < 10**9):
        raise UsageError(f'rate: {text[:32]!r}; write requests by s, m or h, such as "60/m"')
    return int(count), _PERIODS[unit]


_COLUMNS = "name, budget, rate, period, expires, revoked, spent, webhook"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
