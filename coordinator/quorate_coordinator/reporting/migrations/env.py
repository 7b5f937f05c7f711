"""Run by Alembic: migrates over the connection that `upgrade` gave, inside its transaction."""

from alembic import context

from quorate_coordinator.reporting.projection import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
