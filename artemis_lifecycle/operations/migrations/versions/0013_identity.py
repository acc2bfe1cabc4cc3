"""The identity of this operations database, by which a catalog's own database records whose catalog it is."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import INGEST, LIFECYCLE, role_statements

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.identity (
        operations_id TEXT PRIMARY KEY,
        made_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL
    )
    """,
    # One row, whatever it says.
    "CREATE UNIQUE INDEX identity_once ON lifecycle.identity ((true))",
    "INSERT INTO lifecycle.identity (operations_id) VALUES (gen_random_uuid()::text)",
    *role_statements(
        {
            INGEST: ("SELECT ON TABLE lifecycle.identity",),
            LIFECYCLE: ("SELECT ON TABLE lifecycle.identity",),
        }
    ),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE lifecycle.identity")
