"""Supply, prices and volume by hour and day, cases, gas; amounts are NUMERIC on PostgreSQL.

The table `runs` is made again, empty, and the offset is deleted: the coordinator fills the new
columns from its state and its archive.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
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
NEW_TABLES = ("market_periods", "host_classes", "cases", "transactions")


def upgrade() -> None:
    """Adds columns and tables."""
    amount = _amount()
    op.execute("delete from progress")
    if _is_postgres():
        for column in ("final", "held"):
            op.alter_column(
                "providers",
                column,
                existing_type=sa.String(39),
                type_=amount,
                existing_nullable=False,
                postgresql_using=f"{column}::numeric(39, 0)",
            )
    op.drop_table("runs")
    _create_runs(
        (
            sa.Column("host_class", sa.String(64), nullable=False),
            *_columns_until_outcome(),
            sa.Column("ending", sa.String(16), nullable=False),
            *(sa.Column(name, sa.Integer, nullable=False) for name in COUNTS[1:4]),
            *(sa.Column(name, amount, nullable=False) for name in ("charged", "fee")),
        ),
        ("client", "host_class", "phase", "created_at"),
    )
    op.create_table(
        "market_periods",
        sa.Column("unit", sa.String(4), primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("host_class", sa.String(64), primary_key=True),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("providers", sa.Integer, nullable=False),
        *(sa.Column(name, amount) for name in ("price_least", "price_median", "price_p90")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in COUNTS),
        *(sa.Column(name, amount, nullable=False) for name in ("charged", "fee")),
    )
    op.create_table(
        "host_classes",
        sa.Column("host_class", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    _create_observed(amount)


def _create_observed(amount: sa.types.TypeEngine[Any]) -> None:
    op.create_table(
        "cases",
        sa.Column("key", sa.String(160), primary_key=True),
        sa.Column("case_id", sa.String(78)),
        sa.Column("accused", sa.String(40), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("is_convicted", sa.Integer),
        sa.Column("slashed", amount, nullable=False),
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
        sa.Column("cost_wei", amount, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_transactions_at", "transactions", ["at"])


def _columns_until_outcome() -> tuple[sa.Column[str], ...]:
    return (
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("rule", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16)),
    )


def _create_runs(columns: tuple[sa.Column[Any], ...], indexed: tuple[str, ...]) -> None:
    op.create_table(
        "runs",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("client", sa.String(40), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        *columns,
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("receipt_cid", sa.String(80)),
    )
    for column in indexed:
        op.create_index(f"ix_runs_{column}", "runs", [column])


def downgrade() -> None:
    """Removes the new columns and tables; amounts are text everywhere again."""
    for name in (*NEW_TABLES, "runs"):
        op.drop_table(name)
    op.execute("delete from progress")
    _create_runs(
        (
            *_columns_until_outcome(),
            sa.Column("executions", sa.Integer, nullable=False),
            sa.Column("charged", sa.String(39), nullable=False),
        ),
        ("client", "phase", "created_at"),
    )
    if _is_postgres():
        for column in ("final", "held"):
            op.alter_column("providers", column, existing_type=_amount(), type_=sa.String(39))


def _is_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _amount() -> sa.types.TypeEngine[Any]:
    """NUMERIC where it is exact; decimal text on SQLite, whose integers have 64 bits."""
    return sa.Numeric(39, 0) if _is_postgres() else sa.String(39)
