"""The first tables: runs, providers, and how far the state was projected."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes them."""
    op.create_table(
        "runs",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("client", sa.String(40), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("rule", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("executions", sa.Integer, nullable=False),
        sa.Column("charged", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("receipt_cid", sa.String(80)),
    )
    for column in ("client", "phase", "created_at"):
        op.create_index(f"ix_runs_{column}", "runs", [column])
    op.create_table(
        "providers",
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("region", sa.String(64), nullable=False),
        sa.Column("final", sa.BigInteger, nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("faults", sa.Integer, nullable=False),
        sa.Column("is_frozen", sa.Integer, nullable=False),
    )
    op.create_table(
        "progress",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("event_seq", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Removes them."""
    for name in ("progress", "providers", "runs"):
        op.drop_table(name)
