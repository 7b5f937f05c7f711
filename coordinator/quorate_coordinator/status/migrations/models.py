"""The SQL tables that people query, the same on SQLite and PostgreSQL.

The coordinator never decides by them. `runs`, `providers` and the volume columns of
`market_periods` come from state and archive, and a rebuild fills them again. Supply, cases and
transactions are observations, which no rebuild brings back.
"""

from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Dialect, Numeric, String, Text, types
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from quorate_coordinator.base.operator_view import ENDINGS

AMOUNT_DIGITS = 39  # an amount has 128 bits on the wire


class AmountType(types.TypeDecorator[int]):
    """An integer of up to 128 bits: NUMERIC on PostgreSQL, decimal text on SQLite, whose integers
    have 64 bits. Python adds amounts, never the database.
    """

    impl = String(AMOUNT_DIGITS)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(Numeric(AMOUNT_DIGITS, 0))
        return dialect.type_descriptor(String(AMOUNT_DIGITS))

    def process_bind_param(self, value: int | str | None, dialect: Dialect) -> object:
        """Decimal text counts as an integer too."""
        if value is None:
            return None
        return Decimal(int(value)) if dialect.name == "postgresql" else str(int(value))

    def process_result_value(self, value: Decimal | str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


class Base(DeclarativeBase):
    """All tables; `Base.metadata` is what the migrations lead to."""


class Run(Base):
    """One job, from the time of its order."""

    __tablename__ = "runs"

    job_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    client: Mapped[str] = mapped_column(String(40), index=True)
    name: Mapped[str] = mapped_column(String(63))
    pool: Mapped[str] = mapped_column(String(64), index=True)
    phase: Mapped[str] = mapped_column(String(16), index=True)
    rule: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(String(16))
    """The verdict's: accepted, unresolved, cannot_verify, lapsed."""
    ending: Mapped[str] = mapped_column(String(16))
    """The outcome, accepted for a rental that was charged, or stopped (by its client), or unmatched
    (the order expired); "" before.
    """
    executions: Mapped[int]
    audits: Mapped[int]
    """Executions by auditors."""
    outvoted: Mapped[int]
    """Executions outside the accepted group."""
    charged: Mapped[int] = mapped_column(AmountType)
    """Millionths of a USD; so is `fee`, the coordinator's part of it."""
    fee: Mapped[int] = mapped_column(AmountType)
    created_at: Mapped[int] = mapped_column(BigInteger, index=True)
    receipt_cid: Mapped[str | None] = mapped_column(String(80))


class ProviderRow(Base):
    """One registered provider and what it has earned, in millionths of a USD."""

    __tablename__ = "providers"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    region: Mapped[str] = mapped_column(String(64))
    final: Mapped[int] = mapped_column(AmountType)
    held: Mapped[int] = mapped_column(AmountType)
    vouched: Mapped[int] = mapped_column(AmountType)
    """What was signed for it; `paid` is what the chain paid it, and `locked` its guarantee."""
    paid: Mapped[int] = mapped_column(AmountType)
    locked: Mapped[int] = mapped_column(AmountType)
    faults: Mapped[int]


class MarketPeriod(Base):
    """Supply, prices and volume of one pool in one hour or day (UTC).

    Supply and prices are those of the observation with the most slots. Volume counts the jobs that
    were ordered in the period, and what has become of them since.
    """

    __tablename__ = "market_periods"

    unit: Mapped[str] = mapped_column(String(4), primary_key=True)
    """hour or day"""
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Unix seconds"""
    pool: Mapped[str] = mapped_column(String(64), primary_key=True)
    slots: Mapped[int] = mapped_column(default=0)
    """Run slots on offer."""
    providers: Mapped[int] = mapped_column(default=0)
    price_least: Mapped[int | None] = mapped_column(AmountType)
    """Millionths of a USD for a slot-hour; so are the next two. Every slot counts once."""
    price_median: Mapped[int | None] = mapped_column(AmountType)
    price_p90: Mapped[int | None] = mapped_column(AmountType)
    jobs: Mapped[int] = mapped_column(default=0)
    executions: Mapped[int] = mapped_column(default=0)
    audits: Mapped[int] = mapped_column(default=0)
    outvoted: Mapped[int] = mapped_column(default=0)
    accepted: Mapped[int] = mapped_column(default=0)
    unresolved: Mapped[int] = mapped_column(default=0)
    cannot_verify: Mapped[int] = mapped_column(default=0)
    lapsed: Mapped[int] = mapped_column(default=0)
    stopped: Mapped[int] = mapped_column(default=0)
    unmatched: Mapped[int] = mapped_column(default=0)
    charged: Mapped[int] = mapped_column(AmountType, default=0)
    fee: Mapped[int] = mapped_column(AmountType, default=0)


class PoolRow(Base):
    """A pool by its id, as canonical JSON."""

    __tablename__ = "pools"

    pool: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class CaseRow(Base):
    """One court case that is known here. `seen_at` is when the tables first had it."""

    __tablename__ = "cases"

    execution: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Digest of the accused's Assignment."""
    case_id: Mapped[str | None] = mapped_column(String(64))
    accused: Mapped[str] = mapped_column(String(40))
    phase: Mapped[str] = mapped_column(String(16))
    burned: Mapped[int] = mapped_column(AmountType)
    """By this coordinator, in millionths of a USD; so is `taken` of the accused's stake."""
    is_convicted: Mapped[int | None]
    taken: Mapped[int] = mapped_column(AmountType)
    seen_at: Mapped[int] = mapped_column(BigInteger, index=True)


class TransactionRow(Base):
    """One mined transaction of the posting key and what its gas cost, in wei."""

    __tablename__ = "transactions"

    purpose: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    """The purpose up to its first hyphen or slash: payroll, redeem, case ..."""
    block: Mapped[int] = mapped_column(BigInteger)
    succeeded: Mapped[int]
    gas_used: Mapped[int] = mapped_column(BigInteger)
    cost_wei: Mapped[int] = mapped_column(AmountType)
    at: Mapped[int] = mapped_column(BigInteger, index=True)
    """Time of its block where its logs tell it, else when it was first seen here."""


class Progress(Base):
    """How far the tables show the jobs' histories."""

    __tablename__ = "progress"

    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    event_seq: Mapped[int] = mapped_column(BigInteger)


VOLUME_COLUMNS = ("jobs", "executions", "audits", "outvoted", *ENDINGS, "charged", "fee")
"""Columns of `MarketPeriod` that follow from the runs."""
SUPPLY_COLUMNS = ("slots", "providers", "price_least", "price_median", "price_p90")
"""Columns of `MarketPeriod` that were observed."""
