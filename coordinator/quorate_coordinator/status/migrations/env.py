"""Alembic runs this: it migrates over the connection that `upgrade` gave, in its transaction."""

from alembic import context

from quorate_coordinator.status.migrations.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
