"""The tables as the models say them. The first revision that changes a model writes the tables of
this one out here.
"""

from alembic import op

from quorate_coordinator.status.migrations.models import Base

revision = "0001"
down_revision = None


def upgrade() -> None:
    # A table that is there already is damage, and says so.
    Base.metadata.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    Base.metadata.drop_all(op.get_bind())
