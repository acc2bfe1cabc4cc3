"""Alembic's entry point: runs on the connection from `database.migrate`, inside its transaction."""

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
