"""Amounts have 128 bits on the wire and SQLite's integers 64: decimal text, as on the wire above
2^53.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
AMOUNTS = {"runs": ("charged",), "providers": ("final", "held")}


def upgrade() -> None:
    """Integers become text."""
    _change(sa.BigInteger(), sa.String(39))


def downgrade() -> None:
    """Text becomes integers; what does not fit is cut by SQLite, and a rebuild brings it back."""
    _change(sa.String(39), sa.BigInteger())


def _change(before: sa.types.TypeEngine[Any], after: sa.types.TypeEngine[Any]) -> None:
    for table, columns in AMOUNTS.items():
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.alter_column(
                    column, existing_type=before, type_=after, existing_nullable=False
                )
