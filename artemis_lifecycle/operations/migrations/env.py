"""Alembic's entry: runs on the connection that `database.migrate` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from artemis_lifecycle.operations.tables import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
