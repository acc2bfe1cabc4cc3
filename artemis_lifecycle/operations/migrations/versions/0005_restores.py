"""What was brought back from the cold tier, for whom, and onto which branch."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.restores (
        restore_id TEXT NOT NULL PRIMARY KEY,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        source_snapshot_id BIGINT NOT NULL,
        branch TEXT NOT NULL,
        folder TEXT NOT NULL,
        who TEXT NOT NULL,
        why TEXT,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        protected_since TIMESTAMP WITH TIME ZONE,
        abandoned_at TIMESTAMP WITH TIME ZONE,
        finished_at TIMESTAMP WITH TIME ZONE,
        snapshot_id BIGINT,
        metadata_location TEXT
    )
    """,
    "CREATE INDEX restores_of_table ON lifecycle.restores (table_uuid, started_at)",
    "CREATE UNIQUE INDEX restores_one_open ON lifecycle.restores (table_uuid, source_snapshot_id, branch) "
    "WHERE finished_at IS NULL AND abandoned_at IS NULL",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.restores",)}),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE lifecycle.restores")
