"""The tables. Amounts are NUMERIC on PostgreSQL, and decimal text on SQLite, whose integers have 64
bits.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
COUNTS = (
    "jobs",
    "executions",
    "audits",
    "outvoted",
    "accepted",
    "unresolved",
    "cannot_verify",
    "lapsed",
    "stopped",
    "unmatched",
)
TABLES = (
    "runs",
    "providers",
    "market_periods",
    "host_classes",
    "cases",
    "transactions",
    "progress",
)


def upgrade() -> None:
    """Makes them."""
    amount = _amount()
    _create_runs(amount)
    op.create_table(
        "providers",
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("region", sa.String(64), nullable=False),
        *_required(amount, "final", "held", "vouched", "paid", "locked"),
        *_required(sa.Integer(), "faults"),
    )
    op.create_table(
        "market_periods",
        sa.Column("unit", sa.String(4), primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("host_class", sa.String(64), primary_key=True),
        *_required(sa.Integer(), "slots", "providers"),
        *(sa.Column(name, amount) for name in ("price_least", "price_median", "price_p90")),
        *_required(sa.Integer(), *COUNTS),
        *_required(amount, "charged", "fee"),
    )
    op.create_table(
        "host_classes",
        sa.Column("host_class", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    _create_observed(amount)
    op.create_table(
        "progress",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("event_seq", sa.BigInteger, nullable=False),
    )


def _create_runs(amount: sa.types.TypeEngine[Any]) -> None:
    op.create_table(
        "runs",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("client", sa.String(40), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("host_class", sa.String(64), nullable=False),
        *_required(sa.String(16), "phase", "rule"),
        sa.Column("outcome", sa.String(16)),
        sa.Column("ending", sa.String(16), nullable=False),
        *_required(sa.Integer(), "executions", "audits", "outvoted"),
        *_required(amount, "charged", "fee"),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("receipt_cid", sa.String(80)),
    )
    for column in ("client", "host_class", "phase", "created_at"):
        op.create_index(f"ix_runs_{column}", "runs", [column])


def _create_observed(amount: sa.types.TypeEngine[Any]) -> None:
    op.create_table(
        "cases",
        sa.Column("execution", sa.String(64), primary_key=True),
        sa.Column("case_id", sa.String(64)),
        sa.Column("accused", sa.String(40), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        *_required(amount, "burned"),
        sa.Column("is_convicted", sa.Integer),
        *_required(amount, "taken"),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_cases_seen_at", "cases", ["seen_at"])
    op.create_table(
        "transactions",
        sa.Column("purpose", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("block", sa.BigInteger, nullable=False),
        sa.Column("succeeded", sa.Integer, nullable=False),
        sa.Column("gas_used", sa.BigInteger, nullable=False),
        *_required(amount, "cost_wei"),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_transactions_at", "transactions", ["at"])


def _required(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def downgrade() -> None:
    """Removes them."""
    for name in TABLES:
        op.drop_table(name)


def _amount() -> sa.types.TypeEngine[Any]:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    return sa.Numeric(39, 0) if is_postgres else sa.String(39)
